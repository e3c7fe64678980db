-- Tells what one replica holds of the slots of some accounts, and takes more of them.
--
-- An account's slots are a hash: for each replica "slots:bytes", under the name of its incarnation, "replica.number".
-- A replica tells what it holds in all and not a difference, so that each call puts right whatever went before it.
-- What a replica holds counts while its incarnation is registered (replica.lua); the rest is removed here.
--
-- KEYS  1 the register, then accounts' slots, all under one hash tag
-- ARGV  1 the replica, 2 the number of its incarnation, 3 after how many microseconds a replica is dead, 4 the
--       lifetime of what is written in milliseconds, then for each account:
--       slots and bytes held; most slots and most bytes of all replicas; slots and bytes wanted, and how often
-- returns for each account 4 times how often that was granted, and 1 where slots or 2 where bytes ran out;
--         or the error LOST: the replica has to register again

local call, match, sub = redis.call, string.match, string.sub
local prefix, number = ARGV[1] .. '.', tonumber(ARGV[2])
local own = prefix .. ARGV[2]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local live = {}
for _, name in ipairs(call('ZRANGEBYSCORE', KEYS[1], now - ARGV[3], '+inf')) do
  -- A call of an earlier incarnation that comes late must change nothing.
  if sub(name, 1, #prefix) == prefix and tonumber(sub(name, #prefix + 1)) > number then
    return redis.error_reply('LOST a later incarnation is registered')
  end
  live[name] = true
end
if not live[own] then
  return redis.error_reply('LOST the replica is not registered')
end

local answers, a = {}, 5
for i = 2, #KEYS do
  local key = KEYS[i]
  local slots, bytes = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local most, mostBytes = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local want, wantBytes, times = tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
  local allSlots, allBytes, written = slots, bytes, false
  local fields = redis.pcall('HGETALL', key)
  if fields.err then
    if sub(fields.err, 1, 9) ~= 'WRONGTYPE' then
      return fields
    end
    call('DEL', key) -- somebody else's, under a name of ours
    fields = {}
  end
  for f = 1, #fields, 2 do
    local name = fields[f]
    if name == own then
      written = true
    elseif live[name] and sub(name, 1, #prefix) ~= prefix then
      local s, b = match(fields[f + 1], '^(%d+):(%d+)$')
      allSlots, allBytes = allSlots + (s or 0), allBytes + (b or 0)
    else
      call('HDEL', key, name)
    end
  end

  local granted, short = 0, 0
  while granted < times do
    if want > 0 and allSlots + want > most then
      short = 1
      break
    end
    -- The only large body under way has its bytes, however many (facts Q6).
    local others = want > 0 and allSlots or allSlots - 1
    if wantBytes > 0 and others > 0 and allBytes + wantBytes > mostBytes then
      short = 2
      break
    end
    granted = granted + 1
    slots, allSlots = slots + want, allSlots + want
    bytes, allBytes = bytes + wantBytes, allBytes + wantBytes
  end

  if slots > 0 then
    call('HSET', key, own, string.format('%.0f:%.0f', slots, bytes))
    call('PEXPIRE', key, ARGV[4])
  elseif written then
    call('HDEL', key, own)
  end
  answers[i - 1] = granted * 4 + short
  a = a + 7
end

return answers

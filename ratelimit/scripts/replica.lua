-- Keeps the register of replicas: a sorted set of "replica.number" by when each was last heard of, in microseconds of
-- Redis' own clock. What a replica holds counts while its incarnation stands in it and was heard of lately.
--
-- KEYS  1 the register
-- ARGV  1 the replica, 2 the number of its incarnation, 3 after how many microseconds a replica is dead, 4 what to do:
--         join   registers an incarnation; earlier ones stay, so that what they hold counts until it is told again
--         beat   says that it lives, and ends its earlier incarnations
--         leave  ends all its incarnations, and with them what they hold
-- returns whether it is registered (1 or 0), how many replicas live, and which process this Redis is

local call, match = redis.call, string.match
local register, prefix, number = KEYS[1], ARGV[1] .. '.', tonumber(ARGV[2])
local own = prefix .. ARGV[2]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local dead = now - ARGV[3]

local seen = redis.pcall('ZSCORE', register, own)
if type(seen) == 'table' and seen.err then
  if string.sub(seen.err, 1, 9) ~= 'WRONGTYPE' then
    return seen
  end
  call('DEL', register) -- somebody else's, under a name of ours
  seen = false
end
local registered = ARGV[4] ~= 'leave'
if ARGV[4] == 'beat' and (not seen or tonumber(seen) < dead) then
  -- Forgotten with the data, or taken for dead: others may have removed what it holds.
  registered = false
end
if registered then
  call('ZADD', register, now, own)
end

local live, replicas = 0, {}
for _, name in ipairs(call('ZRANGE', register, 0, -1)) do
  local replica, n = match(name, '^(.*)%.(%d+)$')
  local score = tonumber(call('ZSCORE', register, name))
  if replica == ARGV[1] and (ARGV[4] == 'leave' or (ARGV[4] == 'beat' and registered and tonumber(n) < number)) then
    call('ZREM', register, name)
  elseif score < dead then
    call('ZREM', register, name)
  else
    if score > now then
      -- The clock was set back: who does not say so again soon is dead all the same (L08).
      call('ZADD', register, now, name)
    end
    if not replicas[replica] then
      replicas[replica] = true
      live = live + 1
    end
  end
end
call('PEXPIRE', register, 86400000)

local info = redis.pcall('INFO', 'server')
return {registered and 1 or 0, live, type(info) == 'string' and match(info, 'run_id:(%x+)') or ''}

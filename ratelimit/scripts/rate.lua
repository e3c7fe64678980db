-- Takes what one replica has admitted from the buckets of some accounts, and says what is left.
--
-- A bucket is a hash: l = its level in millionths of a request, below zero for a debt; t = the time of that level, in
-- microseconds of Redis' own clock; n = how many replicas have used it; and for each of them, under its name, how many
-- requests in all it has told of. A replica tells a total and not a difference, so that a call that is sent twice, or
-- whose answer got lost, charges once.
--
-- KEYS  buckets, all under one hash tag
-- ARGV  1 the replica, 2 twice the microseconds between two reports of a replica, then for each bucket: its total; the
--       part of that which it knows to be told; how many microseconds ago the first request was admitted that was not;
--       the level it sees itself; requests a second; burst
-- returns for each bucket its level, or false where no other replica has ever used it: then what the caller sees is
-- the truth, and is kept here for the next replica to begin with.

local call, floor, min, max = redis.call, math.floor, math.min, math.max

-- What somebody else wrote under a name of ours is no bucket, and goes: it must not end the counting of all others.
local function bucket(key, replica)
  local known = redis.pcall('HMGET', key, 'l', 't', 'n', replica)
  if known.err then
    if string.sub(known.err, 1, 9) ~= 'WRONGTYPE' then
      return known
    end
  elseif not (known[1] or known[2] or known[3] or known[4])
      or tonumber(known[1]) and tonumber(known[2]) and tonumber(known[3]) and tonumber(known[4] or 0) then
    return known
  end
  call('DEL', key)
  return {false, false, false, false}
end

local replica, late = ARGV[1], tonumber(ARGV[2])
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local levels, a = {}, 3

for i, key in ipairs(KEYS) do
  local total, level, rate, burst = ARGV[a], ARGV[a + 3], tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  local known = bucket(key, replica)
  if known.err then
    return known
  end
  local replicas = known[4] and tonumber(known[3]) or (known[3] or 0) + 1
  levels[i] = false

  if replicas > 1 then
    local charge = max(total - max(tonumber(ARGV[a + 1]), tonumber(known[4] or 0)), 0)
    -- Where the clock was set back, time stands still until the next call, and no longer (L08).
    local passed = max(now - known[2], 0)
    -- What is charged was admitted one by one since, while the bucket refilled; and what the others admitted lately is
    -- not charged yet. A small bucket that overflows first would lose what was used all along.
    local since = min(tonumber(ARGV[a + 2]), passed)
    local most = max(burst * 1000000, rate * late)
    level = min(most, known[1] + rate * (passed - since))
    level = min(most, level + rate * since - charge * 1000000)
    -- More debt than all replicas can run up between reports and with their bursts is no use of the account's.
    level = max(level, -replicas * (burst * 1000000 + rate * late + 1000000))
    levels[i] = level
    if replicas > 64 and not known[4] then
      -- Most of them are gone. Who is not says in its next report what it knows to be told. Two are enough to say that
      -- the bucket is shared.
      call('DEL', key)
      known[2], replicas = false, 2
    end
  end

  if known[4] then
    call('HSET', key, 'l', level, 't', now, replica, total)
  else
    call('HSET', key, 'l', level, 't', now, 'n', replicas, replica, total)
  end
  -- A bucket that nobody uses is full again, and then the same as none. The lifetime is renewed every 10 s at most.
  if not known[2] or floor(known[2] / 10000000) ~= floor(now / 10000000) then
    call('PEXPIRE', key, 70000 + floor((1 + replicas) * burst * 1000 / rate))
  end
  a = a + 6
end

return levels

-- Acquires a lease that carries a fencing token, metadata, or both.
--   KEYS[1] the lease   KEYS[2] the counter, absent without fencing
--   ARGV[1] token  ARGV[2] TTL in ms  ARGV[3] metadata  ARGV[4] the new token must exceed this
-- Returns the fencing token as a string ('0' without fencing), or nil when the lease is taken.
-- Asked again with the token that already holds the lease, it answers as it did then.
-- Counters are compared as strings: Lua's numbers are doubles, exact to 2^53 only.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return held end
if held then
  if string.sub(held, 1, 40) ~= ARGV[1] then return false end
  return string.match(held, '^%x+:(%d+):')
end

local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local fence = '0'
if KEYS[2] then
  local last = redis.pcall('GET', KEYS[2])
  if type(last) == 'table' then return last end
  if last and last ~= '0' and not string.match(last, '^[1-9]%d*$') then
    return redis.error_reply("BADCOUNTER the counter '" .. KEYS[2] .. "' holds '" .. string.sub(last, 1, 40) ..
      "', not a whole number; set it to the highest token ever issued")
  end
  last = last or '0'
  local floor = last
  if less(last, ARGV[4]) then floor = ARGV[4] end
  if not less(floor, '9223372036854775807') then
    return redis.error_reply("BADCOUNTER the token after " .. string.sub(floor, 1, 40) ..
      " does not fit the counter '" .. KEYS[2] .. "'; the highest is 9223372036854775807")
  end
  if floor ~= last then redis.call('SET', KEYS[2], floor) end
  redis.call('INCR', KEYS[2])
  fence = redis.call('GET', KEYS[2])
end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. fence .. ':' .. ARGV[3], 'PX', ARGV[2])
return fence

-- Acquires a lease that carries a fencing token, metadata, or both.
--   KEYS[1] the lease   KEYS[2] the counter, absent without fencing
--   ARGV[1] token  ARGV[2] TTL in ms  ARGV[3] metadata  ARGV[4] the fencing token must exceed this
-- Returns the fencing token as a string ('0' without fencing), or nil when the lease is taken.
-- Asked again with the token that already holds the lease, it answers as it did then.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return held end
if held then
  if string.sub(held, 1, 40) ~= ARGV[1] then return false end
  return string.match(held, '^%x+:(%d+):')
end

local fence = '0'
if KEYS[2] then
  local last = base(KEYS[2], ARGV[4])
  if type(last) == 'table' then return last end
  if last ~= redis.call('GET', KEYS[2]) then redis.call('SET', KEYS[2], last) end
  redis.call('INCR', KEYS[2])
  fence = redis.call('GET', KEYS[2])
end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. fence .. ':' .. ARGV[3], 'PX', ARGV[2])
return fence

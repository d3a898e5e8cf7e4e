-- Prolongs the lease if it is ours: compare the token, then PEXPIRE.
--   KEYS[1] the lease   ARGV[1] token  ARGV[2] TTL in ms
-- Returns 1 when prolonged, 0 when the lease is not ours.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return held end
if not held or string.sub(held, 1, 40) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])

-- Reads a lease.
--   KEYS[1] the lease
-- Returns {value, TTL left in ms}; {'', -2} when the lease is free.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return held end
if not held then return {'', -2} end
return {held, redis.call('PTTL', KEYS[1])}

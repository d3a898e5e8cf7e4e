-- Releases the lease if it is ours: compare the token, then DEL, and tell those who wait.
--   KEYS[1] the lease   ARGV[1] token  ARGV[2] release channel, '' to tell nobody
-- Returns 1 when released, 0 when the lease is not ours.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return held end
if not held or string.sub(held, 1, 40) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if ARGV[2] ~= '' then redis.pcall('PUBLISH', ARGV[2], '') end -- a user without channels may still release
return 1

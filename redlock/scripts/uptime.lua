-- Tells for how long the server that has the lease has been up.
--   KEYS[1] the lease: a cluster is asked where its key is
-- Returns whole seconds as a string, nil where INFO does not say.
local info = redis.pcall('INFO', 'server')
if type(info) == 'table' then return info end
return string.match(info, 'uptime_in_seconds:(%d+)')

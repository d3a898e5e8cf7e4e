-- Takes a lease whose fencing token is still to be agreed by a majority of the nodes: the first phase.
--   KEYS[1] the lease   KEYS[2] the counter
--   ARGV[1] token  ARGV[2] TTL in ms  ARGV[3] metadata  ARGV[4] the fencing token must exceed this
-- Returns, as a string, what the fencing token must exceed to be new to this node, or nil when the lease is taken.
-- Nobody else can change the counter before the lease has ended, so asked again it answers the same.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return held end
if held and string.sub(held, 1, 40) ~= ARGV[1] then return false end
local last = base(KEYS[2], ARGV[4])
if type(last) == 'table' or held then return last end
redis.call('SET', KEYS[1], ARGV[1] .. '::' .. ARGV[3], 'PX', ARGV[2])
return last

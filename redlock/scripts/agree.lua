-- Stores the fencing token of a lease, with the lease and as the counter: the second phase.
--   KEYS[1] the lease   KEYS[2] the counter   ARGV[1] token  ARGV[2] fencing token  ARGV[3] metadata
-- Returns 1 when stored, 0 when the lease is not ours. A counter that is ahead, of a node that granted the lease after the
-- fencing token had been chosen, stays: what matters is that the next token exceeds ours.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return held end
if not held or string.sub(held, 1, 40) ~= ARGV[1] then return 0 end
local last = counter(KEYS[2])
if type(last) == 'table' then return last end
if less(last, ARGV[2]) then redis.call('SET', KEYS[2], ARGV[2]) end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. ARGV[2] .. ':' .. ARGV[3], 'KEEPTTL')
return 1

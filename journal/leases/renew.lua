-- Make a lease last longer, if it is still its holder's.
--
-- KEYS[1]  hash of the scope, see acquire.lua
-- ARGV     lease_id, fence, ttl_micros (>= 0)
--
-- Answer   {'renewed', expires_at_micros}
--          {'lost'}   it was released, or another has it; nothing was changed
--
-- Race     Between a look at the holder and the new expiry another could take the lease, which would then be prolonged in
--          the other's name. A lease that ran out and was not taken is still its holder's.

local lease_id, fence, ttl = unpack(ARGV)
local stored = redis.call('HMGET', KEYS[1], 'lease_id', 'fence', 'released_by')
if stored[1] ~= lease_id or stored[2] ~= fence or stored[3] ~= '' then
  return {'lost'}
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'expires_at_micros', time[1] .. string.format('%06d', time[2]))
redis.call('HINCRBY', KEYS[1], 'expires_at_micros', ttl)
return {'renewed', redis.call('HMGET', KEYS[1], 'expires_at_micros')[1]}

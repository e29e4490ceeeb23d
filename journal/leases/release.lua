-- Free a scope, if exactly this lease holds it.
--
-- KEYS[1]  hash of the scope, see acquire.lua
-- ARGV     lease_id, fence, token (drawn for this one release, the same when it is sent again)
--
-- Answer   {'freed'}   by this release, now or when it came the first time
--          {'left'}    it was not this lease's, or another release freed it; nothing was changed
--
-- Race     Between a look at the holder and the release the lease could run out and be taken: the new holder's would be
--          freed. A release whose answer was lost is sent again and would find nothing to free: the token tells that it
--          was its own doing. The fence stays, so that the next one is greater.

local lease_id, fence, token = unpack(ARGV)
local stored = redis.call('HMGET', KEYS[1], 'lease_id', 'fence', 'released_by')
if stored[1] ~= lease_id or stored[2] ~= fence then
  return {'left'}
end
if stored[3] == '' then
  redis.call('HSET', KEYS[1], 'released_by', token)
  return {'freed'}
end
return {stored[3] == token and 'freed' or 'left'}

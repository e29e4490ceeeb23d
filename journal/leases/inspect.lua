-- Look at the lease of one scope; changes nothing, so a replica answers it, too.
--
-- KEYS[1]  hash of the scope, see acquire.lua
--
-- Answer   {'none'}   there never was a lease
--          {'lease', fence, lease_id, holder, expires_at_micros, released_by}
--          {'damaged'}   a field is missing
--
-- Race     None: it is a script so that a key that holds something else is told from one that is not there in one step.

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'none'}
end
local stored = redis.call('HMGET', KEYS[1], 'fence', 'lease_id', 'holder', 'expires_at_micros', 'released_by')
local answer = {'lease'}
for field = 1, 5 do
  if not stored[field] then
    return {'damaged'}
  end
  answer[field + 1] = stored[field]
end
return answer

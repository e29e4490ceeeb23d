-- Which of the commands that leases need the user may not call; changes nothing.
--
-- ARGV     hash of a scope, see acquire.lua: no key of the script, so that every node of a cluster can be asked
--
-- Answer   {'unknown'}               this server cannot say (before Redis 7)
--          {'refused', command...}
--
-- Race     None: nothing is decided by it, rights may change a moment later.

if not redis.acl_check_cmd then
  return {'unknown'}
end
local key = ARGV[1]
local commands = {
  {'evalsha', string.rep('0', 40), '1', key}, {'time'}, {'exists', key}, {'hmget', key, 'fence'}, {'hset', key, 'fence', '1'}, {'hincrby', key, 'fence', '1'},
}
local answer = {'refused'}
for _, command in ipairs(commands) do
  if not redis.acl_check_cmd(unpack(command)) then
    answer[#answer + 1] = command[1]
  end
end
return answer

-- Take the lease of one scope, or find one's own again.
--
-- KEYS[1]  hash of the scope: fence, lease_id, holder, expires_at_micros, released_by ('' while it is not released)
-- ARGV     lease_id, holder, ttl_micros (>= 0), floor (0 to 2^63 - 1), replaces ('' for none)
--
-- Answer   {'granted', fence, expires_at_micros}
--          {'held', holder, expires_at_micros}   another has it; nothing was changed
--          {'exhausted'}                         no fence is left; nothing was changed
--          {'damaged'}                           the key holds what this package never wrote; nothing was changed
--
-- Race     Two callers that both read "free" would both write. A script is one step, so the second one reads the first.
--          A caller whose answer was lost asks again with the same lease_id and finds its own fence: none is burnt, and
--          the one who asks twice is not contended by himself. The fence outlives its lease, so the key never expires.
--
-- Numbers are decimal strings throughout: Lua's are doubles, which stop being exact at 2^53. Redis adds (64 bit), and
-- two canonical strings compare by length, then digit by digit.

local MAX = '9223372036854775807'

local function above(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

local function number(text)
  return text and text:find('^[1-9]%d*$') and not above(text, MAX)
end

local function sound(fence, lease_id, holder, expires, released_by)
  return number(fence) and number(expires) and released_by
    and lease_id and #lease_id == 32 and not lease_id:find('%X')
    and holder and #holder > 0 and #holder <= 128 and not holder:find('[^%w._-]')
end

local lease_id, holder, ttl, floor, replaces = unpack(ARGV)
local stored = redis.call('HMGET', KEYS[1], 'fence', 'lease_id', 'holder', 'expires_at_micros', 'released_by')
local fence, held_by, held_as, expires, released_by = unpack(stored, 1, 5)
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])

if fence or held_by or held_as or expires or released_by or redis.call('EXISTS', KEYS[1]) == 1 then
  if not sound(fence, held_by, held_as, expires, released_by) then
    return {'damaged'}
  end
else
  fence, released_by = '0', 'nobody'
end

local held = released_by == ''
if held and held_by == lease_id then
  redis.call('HSET', KEYS[1], 'expires_at_micros', now)
  redis.call('HINCRBY', KEYS[1], 'expires_at_micros', ttl)
  return {'granted', fence, redis.call('HMGET', KEYS[1], 'expires_at_micros')[1]}
end
if held and above(expires, now) and held_by ~= replaces then
  return {'held', held_as, expires}
end

local top = above(floor, fence) and floor or fence
if not above(MAX, top) then
  return {'exhausted'}
end
redis.call('HSET', KEYS[1], 'fence', top, 'lease_id', lease_id, 'holder', holder, 'expires_at_micros', now,
  'released_by', '')
redis.call('HINCRBY', KEYS[1], 'fence', 1)
redis.call('HINCRBY', KEYS[1], 'expires_at_micros', ttl)
local taken = redis.call('HMGET', KEYS[1], 'fence', 'expires_at_micros')
return {'granted', taken[1], taken[2]}

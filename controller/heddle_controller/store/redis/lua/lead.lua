-- Takes the lease if nobody has it.
-- KEYS: lease, leader, sequence, log. ARGV: holder, least epoch, milliseconds, token, writer, kept.
-- Returns {epoch, 0}, or {0, milliseconds that the current lease still lasts}.
local left = redis.call('PTTL', KEYS[1])
if left ~= -2 then
  return {'0', left}
end
local epoch = tonumber(redis.call('HGET', KEYS[2], 'epoch') or '0')
epoch = string.format('%.0f', math.max(epoch, tonumber(ARGV[2])) + 1)
redis.call('HSET', KEYS[2], 'epoch', epoch, 'holder', ARGV[1])
redis.call('SET', KEYS[1], epoch, 'PX', ARGV[3])
local number = string.format('%.0f-0', redis.call('INCR', KEYS[3]))
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[6], number, 'n',
  cjson.encode({ARGV[4], ARGV[5], 'l'}))
return {epoch, 0}

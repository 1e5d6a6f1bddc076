-- Gives up a lease, and writes a log entry that wakes those that wait for it. Returns 1 if it did,
-- or 0 if the lease is not that of the epoch.
-- KEYS: lease, leader, sequence, log. ARGV: epoch, token, writer, kept.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
local number = string.format('%.0f-0', redis.call('INCR', KEYS[3]))
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[4], number, 'n',
  cjson.encode({ARGV[2], ARGV[3], 'l'}))
return 1

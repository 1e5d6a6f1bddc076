-- Gives a lease up, and wakes who waits for it.
-- KEYS: lease, leader, sequence, log. ARGV: epoch, token, writer, kept.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
local number = string.format('%.0f-0', redis.call('INCR', KEYS[3]))
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[4], number, 't', ARGV[2], 'b', ARGV[3],
  'k', 'l', 'f', '')
return 1

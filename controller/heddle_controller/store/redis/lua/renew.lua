-- Renews a lease. KEYS: lease, leader. ARGV: epoch, milliseconds. Returns 1 if it did, else 0.
-- A lease that has expired can still be renewed as long as no other epoch has begun.
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1

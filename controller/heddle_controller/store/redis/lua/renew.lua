-- Makes a lease last anew. KEYS: lease, leader. ARGV: epoch, milliseconds. Answers 1 if it did.
-- A lease that has run out is taken up again as long as no other epoch has begun.
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1

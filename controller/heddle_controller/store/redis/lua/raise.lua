-- Lets the numbers of writes go on from above any that was given out before a store came back
-- older. KEYS: sequence, log. ARGV: number, token, writer, kept. The entry tells, as p, after
-- which number nothing is there.
local top = redis.call('GET', KEYS[1]) or '0'
if tonumber(top) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], ARGV[1] .. '-0', 'n',
    cjson.encode({ARGV[2], ARGV[3], 'n'}), 'p', top)
end
return 1

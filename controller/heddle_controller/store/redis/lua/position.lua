-- Returns the position of the store, for a caller that reads everything next: number and token of
-- the newest write, epoch and holder of the leader, names of fabrics.
-- KEYS: sequence, log, leader, names of fabrics.
local top = redis.call('GET', KEYS[1]) or '0'
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local leader = redis.call('HMGET', KEYS[3], 'epoch', 'holder')
return {top, newest and cjson.decode(newest[2][2])[1] or '', leader[1] or '0', leader[2] or '',
  redis.call('SMEMBERS', KEYS[4])}

-- Returns records of the audit trail and the marks that belong to them, in one step. Redis refuses a
-- transaction when it is out of memory, but not a script that only reads.
-- KEYS: audit trail, its marks. ARGV: number of the record before the first; how many, or 0 for all.
local range = {'XRANGE', KEYS[1], '(' .. ARGV[1] .. '-0', '+'}
if ARGV[2] ~= '0' then
  range[5], range[6] = 'COUNT', ARGV[2]
end
return {redis.call(unpack(range)),
  redis.call('HMGET', KEYS[2], 'number', 'hash', 'anchor', 'anchor_hash')}

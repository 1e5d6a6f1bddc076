-- Lets the versions of a fabric be above any that was told of before a store came back older.
-- KEYS: fabric. ARGV: least version, least version of facts.
if redis.call('EXISTS', KEYS[1]) == 1 then
  for i, field in ipairs({'version', 'facts'}) do
    if tonumber(redis.call('HGET', KEYS[1], field) or '0') < tonumber(ARGV[i]) then
      redis.call('HSET', KEYS[1], field, ARGV[i])
    end
  end
end
return 1

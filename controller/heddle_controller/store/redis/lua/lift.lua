-- Raises the versions of a fabric to a minimum, so that they stay above all that were announced
-- before the store came back in an older state.
-- KEYS: fabric. ARGV: least version, least version of facts.
if redis.call('EXISTS', KEYS[1]) == 1 then
  for i, field in ipairs({'version', 'facts'}) do
    if tonumber(redis.call('HGET', KEYS[1], field) or '0') < tonumber(ARGV[i]) then
      redis.call('HSET', KEYS[1], field, ARGV[i])
    end
  end
end
return 1

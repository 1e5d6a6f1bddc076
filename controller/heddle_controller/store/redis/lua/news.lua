-- Returns the current values of what changed since a write that the caller knows, in one step.
--
-- KEYS: sequence, log, leader. ARGV: number and token of the last known write, limit of log
-- entries, prefix of the keys of fabrics (which share the slot of KEYS).
-- Returns {"news", number, token, epoch, holder, {fabric, whole, {field, value, ...}}...}, or
-- {"gap", number} if the log no longer has the write or has too many entries after it, so that
-- everything has to be read, or {"older", number} if the write is not in this store, which has
-- come back in an older state.

local top = redis.call('GET', KEYS[1]) or '0'
local last = ARGV[1]
if tonumber(last) > tonumber(top) then
  return {'older', top}
end
local token = ARGV[2]
if tonumber(last) > 0 then
  local known = redis.call('XRANGE', KEYS[2], last .. '-0', last .. '-0')[1]
  if not known then
    return {'gap', top}
  end
  if cjson.decode(known[2][2])[1] ~= token then
    return {'older', top}
  end
end

local entries = redis.call('XRANGE', KEYS[2], '(' .. last .. '-0', '+', 'COUNT', ARGV[3])
if #entries >= tonumber(ARGV[3]) then
  return {'gap', top}
end
local names, fields = {}, {}
for _, entry in ipairs(entries) do
  local parts = cjson.decode(entry[2][2]) -- token, writer, kind, fabric, fields
  token = parts[1]
  local fabric = parts[4]
  if fabric then
    if not fields[fabric] then
      names[#names + 1] = fabric
      fields[fabric] = {version = true, facts = true, change_time = true}
    end
    for i = 5, #parts do
      fields[fabric][parts[i]] = true
    end
  end
end

local leader = redis.call('HMGET', KEYS[3], 'epoch', 'holder')
local answer = {'news', top, token, leader[1] or '0', leader[2] or ''}
for _, fabric in ipairs(names) do
  local key = ARGV[4] .. fabric
  local values, whole = {}, 0
  if fields[fabric]['*'] then
    values, whole = redis.call('HGETALL', key), 1
  else
    for field in pairs(fields[fabric]) do
      values[#values + 1] = field
      values[#values + 1] = redis.call('HGET', key, field)
    end
  end
  answer[#answer + 1] = {fabric, whole, values}
end
return answer

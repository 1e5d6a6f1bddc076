-- Applies one change of one fabric completely, or not at all; see state/view.py. The value of a
-- field is "-" if it is absent or to be deleted, else "=" followed by its content.
--
-- KEYS: sequence, log, fabric, leader, requests, order of requests, references of blobs,
--       names of fabrics, audit log, audit marks, then the blobs to keep, then those to drop.
-- Returns the number of the write, or 0 if there is nothing to announce. A change that is not
-- applied returns {"replay", fingerprint .. answer} for a known request, {"guard", field} for a
-- guard that does not hold, {"epoch", newest} for another epoch, {"blob", which} for a missing
-- blob, or {"chain", number, hash} if another record of the audit trail is the newest.
--
-- ARGV: one string with all arguments, each after its length (4 bytes, big-endian).

local at = 1
local function take()
  local part
  part, at = struct.unpack('>I4c0', ARGV[1], at)
  return part
end
local function count()
  return tonumber(take())
end

local token, writer, kind, fabric, epoch = take(), take(), take(), take(), take()
local request, answer, requests_kept, log_kept, now = take(), take(), count(), count(), take()

if request ~= '' then
  local before = redis.call('HGET', KEYS[5], request)
  if before then
    return {'replay', before}
  end
end

if epoch ~= '' then
  local newest = redis.call('HGET', KEYS[4], 'epoch') or '0'
  if epoch ~= newest then
    return {'epoch', newest}
  end
end

for _ = 1, count() do
  local field, want = take(), take()
  local have = redis.call('HGET', KEYS[3], field)
  if (have and '=' .. have or '-') ~= want then
    return {'guard', field}
  end
end

local keep, gone = count(), count()
for which = 1, keep do
  if redis.call('EXISTS', KEYS[10 + which]) == 0 then
    return {'blob', which}
  end
end

local fields, values = {}, {}
for at_field = 1, count() do
  fields[at_field], values[at_field] = take(), take()
end

local entry, last, audit_number, audit_hash, audit_kept = take(), take(), take(), take(), count()
if entry ~= '' then
  local head = redis.call('HMGET', KEYS[10], 'number', 'hash')
  local have = head[2] or string.rep('\0', 32)
  if have ~= last then
    return {'chain', head[1] or '0', have}
  end
end

for at_field, field in ipairs(fields) do
  local value = values[at_field]
  if value == '-' then
    redis.call('HDEL', KEYS[3], field)
  else
    redis.call('HSET', KEYS[3], field, string.sub(value, 2))
  end
end

for which = 1, keep do
  local key = KEYS[10 + which]
  redis.call('PERSIST', key)
  redis.call('HINCRBY', KEYS[7], key, 1)
end
for which = keep + 1, keep + gone do
  local key = KEYS[10 + which]
  if redis.call('HINCRBY', KEYS[7], key, -1) <= 0 then
    redis.call('HDEL', KEYS[7], key)
    redis.call('UNLINK', key)
  end
end

if entry ~= '' then
  redis.call('HSET', KEYS[10], 'number', audit_number, 'hash', audit_hash)
  redis.call('XADD', KEYS[9], audit_number .. '-0', 'h', audit_hash, 'e', entry)
  while redis.call('XLEN', KEYS[9]) > audit_kept do
    local oldest = redis.call('XRANGE', KEYS[9], '-', '+', 'COUNT', 1)[1]
    redis.call('HSET', KEYS[10], 'anchor', string.match(oldest[1], '^%d+'))
    redis.call('HSET', KEYS[10], 'anchor_hash', oldest[2][2])
    redis.call('XDEL', KEYS[9], oldest[1])
  end
end

if request ~= '' then
  redis.call('HSET', KEYS[5], request, answer)
  redis.call('RPUSH', KEYS[6], request)
  while redis.call('LLEN', KEYS[6]) > requests_kept do
    redis.call('HDEL', KEYS[5], redis.call('LPOP', KEYS[6]))
  end
end

if #fields == 0 and kind == 'n' then
  return 0
end
if kind == 'i' then
  redis.call('HSET', KEYS[3], 'change_time', now)
  if redis.call('HINCRBY', KEYS[3], 'version', 1) == 1 then
    redis.call('SADD', KEYS[8], fabric)
  end
elseif kind == 'f' then
  redis.call('HINCRBY', KEYS[3], 'facts', 1)
end
local number = string.format('%.0f', redis.call('INCR', KEYS[1]))
if #fields > 500 then
  fields = {'*'} -- too many: readers read the whole fabric again
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', log_kept, number .. '-0', 'n',
  cjson.encode({token, writer, kind, fabric, unpack(fields)}))
return tonumber(number)

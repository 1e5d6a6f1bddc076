-- Makes one change of one fabric, or nothing of it; see change.py.
--
-- KEYS: sequence, log, fabric, leader, requests, order of requests, references of blobs,
--       names of fabrics, audit log, audit marks, then the blobs to keep, then those to drop.
-- Answers {"done", number} | {"replay", fingerprint .. answer} | {"guard", field} |
--         {"epoch", newest} | {"blob", which}.

local at = 0
local function take()
  at = at + 1
  return ARGV[at]
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

local touched, many = {}, false
for _ = 1, count() do
  local op, field, value, extra = take(), take(), take(), take()
  local go = true
  if op == 'needs' then
    go = redis.call('HEXISTS', KEYS[3], extra) == 1
  elseif op == 'above' then
    local have = redis.call('HGET', KEYS[3], field)
    go = not have or tonumber(string.match(have, '^%d+')) < tonumber(extra)
  end
  if go and op == 'drop' then
    redis.call('HDEL', KEYS[3], field)
  elseif go then
    redis.call('HSET', KEYS[3], field, value)
  end
  if go then
    touched[#touched + 1] = field
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

-- SHA-256 of one link of the audit trail: at most two blocks, so that a script can afford it.
local K = {
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}
local band, bnot, bxor = bit.band, bit.bnot, bit.bxor
local ror, rshift, tobit = bit.ror, bit.rshift, bit.tobit

local function bytes_of(word)
  return string.char(band(rshift(word, 24), 255), band(rshift(word, 16), 255),
    band(rshift(word, 8), 255), band(word, 255))
end

local function block(state, text, first)
  local w = {}
  for i = 1, 16 do
    local a, b, c, d = string.byte(text, first + 4 * i - 4, first + 4 * i - 1)
    w[i] = tobit(a * 16777216 + b * 65536 + c * 256 + d)
  end
  for i = 17, 64 do
    local x, y = w[i - 15], w[i - 2]
    w[i] = tobit(w[i - 16] + w[i - 7] + bxor(ror(x, 7), ror(x, 18), rshift(x, 3))
      + bxor(ror(y, 17), ror(y, 19), rshift(y, 10)))
  end
  local a, b, c, d, e, f, g, h = unpack(state)
  for i = 1, 64 do
    local one = tobit(h + bxor(ror(e, 6), ror(e, 11), ror(e, 25))
      + bxor(band(e, f), band(bnot(e), g)) + K[i] + w[i])
    local two = tobit(bxor(ror(a, 2), ror(a, 13), ror(a, 22))
      + bxor(band(a, b), band(a, c), band(b, c)))
    h, g, f, e, d, c, b, a = g, f, e, tobit(d + one), c, b, a, tobit(one + two)
  end
  for i, value in ipairs({a, b, c, d, e, f, g, h}) do
    state[i] = tobit(state[i] + value)
  end
end

local function sha256(text)
  local state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}
  local padding = (55 - #text) % 64
  text = text .. '\128' .. string.rep('\0', padding + 4) .. bytes_of(#text * 8)
  for first = 1, #text, 64 do
    block(state, text, first)
  end
  local out = {}
  for i = 1, 8 do
    out[i] = bytes_of(state[i])
  end
  return table.concat(out)
end

local content, entry, audit_kept = take(), take(), count()
if content ~= '' then
  local number = redis.call('HINCRBY', KEYS[10], 'number', 1)
  local last = redis.call('HGET', KEYS[10], 'hash') or string.rep('\0', 32)
  local high = math.floor(number / 4294967296)
  local hash = sha256(last .. bytes_of(high) .. bytes_of(number % 4294967296) .. content)
  redis.call('HSET', KEYS[10], 'hash', hash)
  local id = string.format('%.0f-0', number)
  redis.call('XADD', KEYS[9], id, 'h', hash, 'e', entry)
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

if #touched == 0 and kind == 'n' then
  return {'done', '0'}
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
local note = {'t', token, 'b', writer, 'k', kind, 'f', fabric}
if #touched > 500 then
  touched = {'*'} -- so many that the whole fabric is read again
end
for _, field in ipairs(touched) do
  note[#note + 1] = 'c'
  note[#note + 1] = field
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', log_kept, number .. '-0', unpack(note))
return {'done', number}

"""The Lua that Redis runs: everything that must happen together or not at all.

Each script touches the keys of one pool, so of one slot. Where a script looks at something and then writes,
the check and the write are one step for everybody. Blocks come packed, 8 bytes each, and are unpacked here in
runs of at most 1,000, far below what Lua's stack holds.

Out of memory, Redis refuses a script at its first write that could need memory, unless it has already
written. So whatever frees memory stands before whatever takes it: a script is refused as a whole, or runs.
"""

from proxy.shared.script import Script

HELD, FENCED, ANOTHER_EPOCH, SKIPPED, HOLE, DONE = b"held", b"fenced", b"epoch", b"skipped", b"hole", b"done"

_APPEND = """
local function append(log, number, origin, body, most, keep)
  local n = redis.call('INCR', number)
  redis.call('XADD', log, 'MAXLEN', '~', most, '*', 'n', n, 'o', origin, 'b', body)
  redis.call('PEXPIRE', log, keep)
  redis.call('PEXPIRE', number, keep)
  return n
end
"""

_HOLDS = """
-- Whether this claim is the one in force. One that has run out is taken up again if nobody wrote since.
local function holds(own, rep, token, lease)
  local owner = redis.call('GET', own)
  if owner then return owner == token end
  local writer = redis.call('HGET', rep, 'token')
  if writer and writer ~= token then return false end
  redis.call('SET', own, token, 'PX', lease)
  return true
end
"""

_SOUND = """
-- Whether the sets are still as they were written: an evicted one is gone, or begun anew.
local function sound(r, h, blocks, handles)
  return redis.call('SCARD', r) == tonumber(blocks) and redis.call('HLEN', h) == tonumber(handles)
end
"""

_EACH = """
local function each(command, key, raw, first, count, form, per)
  while count > 0 do
    local n = math.min(1000, count)
    local values = {struct.unpack(string.rep(form, n), raw, first)}
    redis.call(command, key, unpack(values, 1, n * per))
    first = values[n * per + 1]
    count = count - n
  end
end
"""


def _script(*parts: str) -> Script:
    return Script("".join(parts))


AGREE = _script("""
-- KEYS meta, then what to keep alive; ARGV keep, then field, value ... : what differs, or nothing
local held = redis.call('HGETALL', KEYS[1])
if #held == 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV, 2))
else
  for i = 2, #ARGV, 2 do
    if redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then return held end
  end
end
for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
return {}
""")

CLAIM = _script("""
-- KEYS own, fence; ARGV who and which, lease, keep: a token, or nothing
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
local token = redis.call('INCR', KEYS[2]) .. ':' .. ARGV[1]
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
return token
""")

RENEW = _script(
    _HOLDS,
    _SOUND,
    """
-- KEYS own, rep, replicas; ARGV token, lease, keep, replica
if not holds(KEYS[1], KEYS[2], ARGV[1], ARGV[2]) then return 'fenced' end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local at = redis.call('HMGET', KEYS[2], 'r', 'h', 'blocks', 'handles')
if not at[1] then return 'epoch' end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('PEXPIRE', at[1], ARGV[3])
redis.call('PEXPIRE', at[2], ARGV[3])
redis.call('SADD', KEYS[3], ARGV[4])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
if not sound(at[1], at[2], at[3], at[4]) then return 'hole' end
return 'held'
""",
)

RELEASE = _script("""
-- KEYS own; ARGV token
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('UNLINK', KEYS[1]) end
""")

COMMIT = _script(
    _APPEND,
    _HOLDS,
    _SOUND,
    _EACH,
    """
-- KEYS own, rep, r, h, replicas, log, number
-- ARGV token, lease, keep, replica, epoch, call, begin, last, seq, removed, stored, body, gone, handles,
--      origin, most
-- The calls of a claim are numbered: one that is repeated does nothing, one that is missing is noticed.
local own, rep, r, h = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, keep, epoch, call = ARGV[1], ARGV[3], ARGV[5], tonumber(ARGV[6])
local begin, last = ARGV[7] == '1', ARGV[8] == '1'
local removed, stored, body = tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12]
local gone, handles = ARGV[13], ARGV[14]
if not holds(own, rep, token, ARGV[2]) then return 'fenced' end
local at = redis.call('HMGET', rep, 'token', 'call', 'epoch', 'blocks', 'handles', 'r', 'h')
local before = at[1] == token and tonumber(at[2]) or 0
if call <= before then return 'done' end
if begin then
  if at[6] then redis.call('UNLINK', at[6], at[7]) end
  redis.call('UNLINK', r, h)
else
  if at[3] ~= epoch then return 'epoch' end
  if call ~= before + 1 then return 'skipped' end
  if not sound(r, h, at[4], at[5]) then return 'hole' end
end
local first = #body - 8 * (removed + stored) + 1
each('SREM', r, body, first, removed, 'c8', 1)
each('HDEL', h, gone, 1, #gone / 8, 'c8', 1)
each('SADD', r, body, first + 8 * removed, stored, 'c8', 1)
each('HSET', h, handles, 1, #handles / 17, 'c8c9', 2)
redis.call('HSET', rep, 'token', token, 'call', call, 'torn', last and 0 or 1,
           'blocks', redis.call('SCARD', r), 'handles', redis.call('HLEN', h))
if last then redis.call('HSET', rep, 'seq', ARGV[9]) end
if begin then
  redis.call('HSET', rep, 'epoch', epoch, 'r', r, 'h', h, 'mode', 'events')
  redis.call('SADD', KEYS[5], ARGV[4])
  redis.call('PEXPIRE', KEYS[5], keep)
end
redis.call('PEXPIRE', rep, keep)
redis.call('PEXPIRE', r, keep)
redis.call('PEXPIRE', h, keep)
if begin or removed + stored > 0 then append(KEYS[6], KEYS[7], ARGV[15], body, ARGV[16], keep) end
return 'held'
""",
)

ANNOUNCE = _script(
    _APPEND,
    """
-- KEYS own, rep, log, number; ARGV token, epoch, mode, origin, body, most, keep
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'fenced' end
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[2] then return 'epoch' end
redis.call('HSET', KEYS[2], 'mode', ARGV[3])
append(KEYS[3], KEYS[4], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
return 'held'
""",
)

DROP = _script(
    _APPEND,
    """
-- KEYS own, rep, log, number; ARGV token, origin, body, most, keep
-- Nothing is known of this replica any more, except who ingests it.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 'fenced' end
local at = redis.call('HMGET', KEYS[2], 'r', 'h')
if not at[1] then return 'epoch' end
redis.call('UNLINK', KEYS[2], at[1], at[2])
append(KEYS[3], KEYS[4], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return 'held'
""",
)

FORGET = _script(
    _APPEND,
    """
-- KEYS own, rep, replicas, log, number; ARGV replica, origin, body, most, keep
-- What is left of `rep` names nobody's claim: none that was in force can be taken up again.
local at = redis.call('HMGET', KEYS[2], 'r', 'h')
redis.call('UNLINK', KEYS[1], KEYS[2])
if at[1] then redis.call('UNLINK', at[1], at[2]) end
redis.call('SREM', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[2], 'token', 'forgotten')
redis.call('PEXPIRE', KEYS[2], ARGV[5])
append(KEYS[4], KEYS[5], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
""",
)

PUBLISH = _script(
    _APPEND,
    """
-- KEYS log, number; ARGV origin, body, most, keep
return append(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
""",
)

TAIL = _script("""
-- KEYS log, number: the last entry's id and how many entries there have been
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
return {last[1] and last[1][1] or '0-0', redis.call('GET', KEYS[2]) or '0'}
""")

FLEET = _script("""
-- KEYS replicas; ARGV what the names of `rep` begin with: replica, epoch, mode, r, ...
local rows = {}
for _, replica in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local at = redis.call('HMGET', ARGV[1] .. replica, 'epoch', 'mode', 'r')
  if at[1] then
    for _, value in ipairs({replica, at[1], at[2], at[3]}) do rows[#rows + 1] = value end
  else
    redis.call('SREM', KEYS[1], replica)
  end
end
return rows
""")

RESUME = _script(
    _SOUND,
    """
-- KEYS own, rep; ARGV token: epoch, seq, h of what can be continued
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local at = redis.call('HMGET', KEYS[2], 'epoch', 'seq', 'torn', 'r', 'h', 'blocks', 'handles')
if not at[1] or not at[2] or at[3] ~= '0' or not sound(at[4], at[5], at[6], at[7]) then return false end
-- A block that no handle stands for could never be removed.
if tonumber(at[7]) < tonumber(at[6]) then return false end
return {at[1], at[2], at[5]}
""",
)

BLOCKS = _script("""
-- KEYS r; ARGV cursor, count: cursor, blocks
local page = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
return {page[1], table.concat(page[2])}
""")

HANDLES = _script("""
-- KEYS h; ARGV cursor, count: cursor, handles
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
return {page[1], table.concat(page[2])}
""")

ROUND = _script("""
-- KEYS load, live; ARGV origin, load, how long it counts, keep, what the names of `live` begin with:
-- whether ours is there, then origin, load of each other proxy that lives
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
local all = redis.call('HGETALL', KEYS[1])
local rows = {'0'}
for i = 1, #all, 2 do
  if all[i] == ARGV[1] then
    rows[1] = '1'
  elseif redis.call('EXISTS', ARGV[5] .. all[i]) == 1 then
    rows[#rows + 1] = all[i]
    rows[#rows + 1] = all[i + 1]
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return rows
""")

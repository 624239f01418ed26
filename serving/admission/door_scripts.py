"""What the door asks of Redis, each in one call.

KEYS[1] is a sorted set: permit id by the millisecond at which its lease ends. KEYS[2] is a hash: permit id → its weight
as `sequences:tokens`; `total:requests` and `total:tokens`, their sums; and `drain:…`, the decayed rates at which
sequences and tokens left (exponentially weighted with a time constant of 10 s), and when they were last reckoned. What
follows are the keys of the subjects that are charged, three each: see `serving.admission.quota_scripts`.

Answers are `{word, detail, standings, now}`: whether the request was let in, what stands in its way, where each subject
stands, and Redis's time in seconds, from which the day follows that is charged.
"""

from serving.admission import quota_scripts

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

_QUEUE = """
local function take_out(id)
  local weight = redis.call('HGET', KEYS[2], id)
  redis.call('ZREM', KEYS[1], id)
  if not weight then return 0, 0 end
  redis.call('HDEL', KEYS[2], id)
  local sequences, tokens = string.match(weight, '^(%d+):(%d+)$')
  redis.call('HINCRBY', KEYS[2], 'total:requests', -sequences)
  redis.call('HINCRBY', KEYS[2], 'total:tokens', -tokens)
  return tonumber(sequences), tonumber(tokens)
end

local function sweep()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do take_out(id) end
end

local function total(name)
  return tonumber(redis.call('HGET', KEYS[2], 'total:' .. name) or 0)
end

local function rate(name)
  local at = tonumber(redis.call('HGET', KEYS[2], 'drain:at') or now)
  local last = tonumber(redis.call('HGET', KEYS[2], 'drain:' .. name) or 0)
  return last * math.exp(-math.max(0, now - at) / 10000)
end

-- What is too much, and at what rate (a thousand seconds) that kind leaves: the slower of the two answers counts.
local function refusal(sequences, tokens, max_sequences, max_tokens)
  local over_sequences = total('requests') + sequences - max_sequences
  local over_tokens = total('tokens') + tokens - max_tokens
  local by_sequences = math.max(0, over_sequences) * math.max(rate('tokens'), 0.001)
  local by_tokens = math.max(0, over_tokens) * math.max(rate('requests'), 0.001)
  if by_sequences >= by_tokens then
    return {total('requests'), total('tokens'), over_sequences, math.floor(rate('requests') * 1000)}
  end
  return {total('requests'), total('tokens'), over_tokens, math.floor(rate('tokens') * 1000)}
end

local function let_out(id)
  local before_sequences, before_tokens = rate('requests'), rate('tokens')
  local sequences, tokens = take_out(id)
  if sequences == 0 then return end
  redis.call('HSET', KEYS[2], 'drain:at', now, 'drain:requests', tostring(before_sequences + sequences / 10),
    'drain:tokens', tostring(before_tokens + tokens / 10))
end
"""

_ANSWER = """
local function answer(word, detail, subjects, window)
  for _, subject in ipairs(subjects) do close_book(subject) end
  return {word, detail, standings(subjects, window), math.floor(now / 1000)}
end

-- What the first quota that is exceeded answers; nil where none is.
local function exceeded_by(subjects, bounds, requests, tokens, window)
  for i, subject in ipairs(subjects) do
    local number, used, wait = exceeded(subject, bounds[i], requests, tokens, window)
    if number then return answer('quota', {i, number, used, wait}, subjects, window) end
  end
end
"""

_COMMON = _NOW + _QUEUE + quota_scripts.COUNT + _ANSWER

ENTER = (
    _COMMON
    + """
local epoch = redis.call('GET', KEYS[3]) or ''
if ARGV[1] ~= '' and ARGV[1] ~= '=' .. epoch then return {'stale', {}, {}, math.floor(now / 1000)} end
local lease, window = tonumber(ARGV[2]), tonumber(ARGV[3])
local max_sequences, max_tokens, num_subjects = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local bounds = read_bounds(7, num_subjects)
local first = 7 + num_subjects * 6
local requests, sequences, waiting, tokens = 0, 0, 0, 0
for i = first, #ARGV, 4 do
  requests = requests + 1
  sequences = sequences + ARGV[i + 1]
  waiting = waiting + ARGV[i + 2]
  tokens = tokens + ARGV[i + 3]
end
sweep()
local subjects = {}
local unknown = {}
for i = 1, num_subjects do
  subjects[i] = open_book(1 + i * 3, window)
  if is_unknown(subjects[i], bounds[i], ARGV[first - num_subjects + i - 1]) then unknown[#unknown + 1] = i end
end
if #unknown > 0 then return answer('unknown', unknown, subjects, window) end
if total('requests') + sequences > max_sequences or total('tokens') + waiting > max_tokens then
  return answer('queue', refusal(sequences, waiting, max_sequences, max_tokens), subjects, window)
end
local refused = exceeded_by(subjects, bounds, requests, tokens, window)
if refused then return refused end
for i = first, #ARGV, 4 do
  local id, amount = ARGV[i], tonumber(ARGV[i + 3])
  redis.call('ZADD', KEYS[1], now + lease, id)
  redis.call('HSET', KEYS[2], id, ARGV[i + 1] .. ':' .. ARGV[i + 2])
  for _, subject in ipairs(subjects) do charge(subject, id, amount, lease) end
end
redis.call('HINCRBY', KEYS[2], 'total:requests', sequences)
redis.call('HINCRBY', KEYS[2], 'total:tokens', waiting)
return answer('in', {}, subjects, window)
"""
)
"""KEYS[3] is the epoch, the subjects' keys follow. ARGV: `=` and the epoch that is to be in force, or nothing; lease
and window in ms; the queue's bounds; the number of subjects, five bounds of each, and the version of each one's quotas;
then, four for each permit, its id, sequences, tokens that wait and tokens that are charged."""

SETTLE = (
    _COMMON
    + """
local id, waiting, max_tokens, amount = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local window, num_subjects = tonumber(ARGV[6]), tonumber(ARGV[7])
local bounds = read_bounds(8, num_subjects)
local weight = redis.call('HGET', KEYS[2], id)
if not weight then return answer('lost', {}, {}, 0) end
local more_waiting = waiting - string.match(weight, ':(%d+)$')
if more_waiting > 0 and total('tokens') + more_waiting > max_tokens then sweep() end
local subjects = {}
for i = 1, num_subjects do subjects[i] = open_book(i * 3, window) end
for _, subject in ipairs(subjects) do
  if not is_open(subject, id) then return answer('lost', {}, subjects, window) end
end
if more_waiting > 0 and total('tokens') + more_waiting > max_tokens then
  return answer('queue', refusal(0, more_waiting, math.huge, max_tokens), subjects, window)
end
for i, subject in ipairs(subjects) do
  local more = amount - entry_of(subject, id)
  if not redis.call('ZSCORE', subject.charges, id) then bounds[i][2] = false end
  local refused = exceeded_by({subject}, {bounds[i]}, 0, more, window)
  if refused then
    refused[2][1] = i
    return answer('quota', refused[2], subjects, window)
  end
end
redis.call('HSET', KEYS[2], id, ARGV[2] .. ':' .. ARGV[3])
redis.call('HINCRBY', KEYS[2], 'total:tokens', more_waiting)
for _, subject in ipairs(subjects) do recharge(subject, id, amount) end
return answer('in', {}, subjects, window)
"""
)
"""The subjects' keys begin with KEYS[3]. ARGV: the permit's id, sequences and tokens that wait; the queue's bound of
those; the tokens that are charged; the window in ms; the number of subjects, and five bounds of each. Answers `lost`
where the permit waits no more, or is not open with each subject: its lease ended, or Redis lost its data."""

RENEW = (
    _COMMON
    + """
local lease, window, num_subjects = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 4, #ARGV, 4 do redis.call('ZADD', KEYS[1], 'XX', now + lease, ARGV[i]) end
sweep()
for number = 1, num_subjects do
  local subject = read_book(number * 3)
  for i = 4, #ARGV, 4 do
    hold(subject, ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), lease)
  end
  tidy(subject, window)
  close_book(subject)
end
return redis.status_reply('OK')
"""
)
"""The subjects' keys begin with KEYS[3]. ARGV: lease and window in ms; the number of subjects; then, four for each
permit, its id, the tokens that it is charged with, those that it has used so far, and the day (since 1970) that it
counts in."""

RELEASE = (
    _NOW
    + _QUEUE
    + """
let_out(ARGV[1])
return redis.status_reply('OK')
"""
)

CLOSE = (
    _COMMON
    + """
local window, passing, num_subjects = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local subjects = {}
for i = 1, num_subjects do subjects[i] = open_book(i * 3, window) end
for i = 4, #ARGV, 3 do
  if passing then take_out(ARGV[i]) else let_out(ARGV[i]) end
  for _, subject in ipairs(subjects) do
    finish(subject, ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), passing)
  end
end
for _, subject in ipairs(subjects) do close_book(subject) end
return redis.status_reply('OK')
"""
)
"""The subjects' keys begin with KEYS[3]. ARGV: the window in ms; 1 where they only passed, and so tell nothing of the
pace at which others leave; the number of subjects; then, three for each permit, its id, the tokens that it used, and
the day (since 1970) that it counts in."""

SEED = _NOW + quota_scripts.COUNT + quota_scripts.SEED
STANDING = _NOW + quota_scripts.COUNT + quota_scripts.STANDING
USE = _NOW + quota_scripts.COUNT + quota_scripts.USE

"""The part of the door's scripts that counts quotas: what one subject, a tenant or a key, has used.

Of each subject three keys: a hash, the book; a sorted set of charges, permit id by the millisecond at which it was
charged, which is the window of the last minute; and a sorted set of leases, permit id by the millisecond at which its
lease ends, which is what is open, or by minus the millisecond at which it stopped: it ended, or lost its lease. The
book maps a permit's id to `amount:used:day:month`: the tokens that it is counted with now, those that it was last known
to have used, -1 once it has ended, and the day (since 1970) and the month (since year 0) that it is counted in. It also
holds the sums: `requests` and `tokens` of the window, `open`, `day:tokens` of `day`, `month:tokens`
of `month`, and `drain` and `drained`, the decayed rate at which requests ended and when it was last reckoned.

All three go an hour after they were last needed. An entry is in the book as long as it is in the window or open, and a
window's length after it stopped: until then what lost its lease can be held again, or be ended with what it used, and
what ended cannot end again. Later, and where Redis lost its data, the end of what is not known adds all that it used to
its day and month. A day or month other than the current one says that its sum is unknown, and has to be taken from the
ledger; so has it where `seeded` names another version of the subject's quotas, or another run of the server, than
those of now: the subject may have had no quotas meanwhile, and then nothing was counted here, or the server may have
come back with older data. At `again`, a minute after `seeded` changed, the ledger is asked once more: by then it has
what was on its way to it, and what ran uncounted and has ended.
"""

COUNT = """
local NAMES = {'requests', 'tokens', 'open', 'day', 'day:tokens', 'month', 'month:tokens', 'drain', 'drained'}
local LIFE = 3600000
local WALK = 256
local ENDED = -1
local SEED_AGAIN = 60000

-- Howard Hinnant, "chrono-compatible low-level date algorithms": civil_from_days.
local function month_of(day)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local of_era = shifted - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local from_march = math.floor((5 * of_year + 2) / 153)
  local month = from_march < 10 and from_march + 3 or from_march - 9
  return (year + era * 400 + (month <= 2 and 1 or 0)) * 12 + month - 1
end

local today = math.floor(now / 86400000)
local this_month = month_of(today)

local function entry_of(subject, id)
  local entry = redis.call('HGET', subject.book, id)
  if not entry then return 0, 0, 0, 0 end
  local amount, used, day, month = string.match(entry, '^(%d+):(%-?%d+):(%d+):(%d+)$')
  return tonumber(amount), tonumber(used), tonumber(day), tonumber(month)
end

local function write(subject, id, amount, used, day, month)
  redis.call('HSET', subject.book, id, string.format('%d:%d:%d:%d', amount, used, day, month))
end

local function add_to_calendar(subject, tokens, day, month)
  if subject.day == day then subject['day:tokens'] = subject['day:tokens'] + tokens end
  if subject.month == month then subject['month:tokens'] = subject['month:tokens'] + tokens end
end

-- A lease that ends after the beginning of time is open; see above for the others.
local function lease_of(subject, id)
  return tonumber(redis.call('ZSCORE', subject.leases, id) or 0)
end

local function is_open(subject, id)
  return lease_of(subject, id) > 0
end

local function has_ended(subject, id)
  local _, used = entry_of(subject, id)
  return used == ENDED
end

local function charge(subject, id, amount, lease)
  redis.call('ZADD', subject.charges, now, id)
  redis.call('ZADD', subject.leases, now + lease, id)
  write(subject, id, amount, 0, today, this_month)
  subject.requests = subject.requests + 1
  subject.open = subject.open + 1
  subject.tokens = subject.tokens + amount
  add_to_calendar(subject, amount, today, this_month)
end

-- Count with another amount.
local function recount(subject, id, amount, used)
  local before, _, day, month = entry_of(subject, id)
  write(subject, id, amount, used, day, month)
  if redis.call('ZSCORE', subject.charges, id) then subject.tokens = subject.tokens + amount - before end
  add_to_calendar(subject, amount - before, day, month)
end

local function recharge(subject, id, amount)
  local _, used = entry_of(subject, id)
  recount(subject, id, amount, used)
end

-- Begin an entry of what nothing is known of, outside of the window.
local function remember(subject, id, day)
  if lease_of(subject, id) == 0 then write(subject, id, 0, 0, day, month_of(day)) end
end

-- Extend the lease, and note what it used so far: that is what it counts with if the lease ends. What has lost its
-- lease meanwhile, or is not known, counts again; what has ended does not.
local function hold(subject, id, amount, used, day, lease)
  if has_ended(subject, id) then return end
  remember(subject, id, day)
  if not is_open(subject, id) then subject.open = subject.open + 1 end
  recount(subject, id, amount, used)
  redis.call('ZADD', subject.leases, now + lease, id)
end

-- Count with what was used, and not at all if that is nothing. What is only `passing` tells nothing of the pace.
local function stop(subject, id, used, mark, passing)
  if is_open(subject, id) then
    subject.open = subject.open - 1
    if not passing then
      subject.drain = subject.drain * math.exp(-math.max(0, now - subject.drained) / 10000) + 0.1
      subject.drained = now
    end
  end
  recount(subject, id, used, mark)
  redis.call('ZADD', subject.leases, -now, id)
  if used == 0 and redis.call('ZREM', subject.charges, id) == 1 then subject.requests = subject.requests - 1 end
end

local function finish(subject, id, used, day, passing)
  if has_ended(subject, id) then return end
  remember(subject, id, day)
  stop(subject, id, used, ENDED, passing)
end

local function leave_window(subject, window)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', subject.charges, '-inf', now - window)) do
    subject.tokens = subject.tokens - entry_of(subject, id)
    subject.requests = subject.requests - 1
    redis.call('ZREM', subject.charges, id)
    if lease_of(subject, id) == 0 then redis.call('HDEL', subject.book, id) end
  end
end

-- Forget what stopped longer than a window ago.
local function forget(subject, window)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', subject.leases, window - now, '(0')) do
    redis.call('ZREM', subject.leases, id)
    if not redis.call('ZSCORE', subject.charges, id) then redis.call('HDEL', subject.book, id) end
  end
end

local function read_book(key)
  local subject = {book = KEYS[key], charges = KEYS[key + 1], leases = KEYS[key + 2]}
  local stored = redis.call('HMGET', subject.book, unpack(NAMES))
  for i, name in ipairs(NAMES) do subject[name] = tonumber(stored[i] or 0) end
  return subject
end

-- Take out what left the window, and settle what lost its lease.
local function tidy(subject, window)
  leave_window(subject, window)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', subject.leases, '(0', now)) do
    local _, used = entry_of(subject, id)
    stop(subject, id, used, used)
  end
  forget(subject, window)
end

-- Read a subject's sums, tidied.
local function open_book(key, window)
  local subject = read_book(key)
  tidy(subject, window)
  return subject
end

local function close_book(subject)
  local fields = {}
  for _, name in ipairs(NAMES) do
    fields[#fields + 1] = name
    fields[#fields + 1] = string.format(name == 'drain' and '%.6g' or '%d', subject[name])
  end
  redis.call('HSET', subject.book, unpack(fields))
  redis.call('PEXPIRE', subject.book, LIFE)
  redis.call('PEXPIRE', subject.charges, LIFE)
  redis.call('PEXPIRE', subject.leases, LIFE)
end

-- Requests and tokens of the window, and the milliseconds until it is empty.
local function standing(subject, window)
  local newest = redis.call('ZREVRANGE', subject.charges, 0, 0, 'WITHSCORES')
  local reset = newest[2] and math.max(0, newest[2] + window - now) or 0
  return {subject.requests, subject.tokens, reset}
end

local function standings(subjects, window)
  local all = {}
  for i, subject in ipairs(subjects) do all[i] = standing(subject, window) end
  return all
end

local function wait_for_requests(subject, excess, window)
  local leaving = redis.call('ZRANGE', subject.charges, excess - 1, excess - 1, 'WITHSCORES')
  return leaving[2] and leaving[2] + window - now or window
end

-- When enough tokens will have left the window. Looks at no more than WALK charges, and says when those will have.
local function wait_for_tokens(subject, excess, window)
  local charges = redis.call('ZRANGE', subject.charges, 0, WALK - 1, 'WITHSCORES')
  local wait = window
  for i = 1, #charges, 2 do
    wait = charges[i + 1] + window - now
    excess = excess - entry_of(subject, charges[i])
    if excess <= 0 then break end
  end
  return wait
end

local function wait_for_ends(subject, excess)
  local rate = subject.drain * math.exp(-math.max(0, now - subject.drained) / 10000)
  if rate < 0.001 then return -1 end
  return math.ceil(excess / rate * 1000)
end

local function wait_for_day()
  return (today + 1) * 86400000 - now
end

local function wait_for_month()
  local day = today + 1
  while month_of(day) == this_month do day = day + 1 end
  return day * 86400000 - now
end

local WAITS = {wait_for_requests, wait_for_tokens, wait_for_day, wait_for_month, wait_for_ends}

-- The first quota that so much more would exceed: its number, what is used of it, and the milliseconds until it would
-- not, -1 where nothing is known of that. `bounds` are in the order of the quotas; false is none.
local function exceeded(subject, bounds, requests, tokens, window)
  local kinds = {
    {subject.requests, requests}, {subject.tokens, tokens}, {subject['day:tokens'], tokens},
    {subject['month:tokens'], tokens}, {subject.open, requests},
  }
  for number, kind in ipairs(kinds) do
    local excess = bounds[number] and kind[1] + kind[2] - bounds[number] or 0
    if excess > 0 and kind[2] > 0 then
      return number, kind[1], WAITS[number](subject, excess, window)
    end
  end
end

-- Under what the sums of day and month are known: a server that was started anew may have older data.
local function seed_word(version)
  return version .. '@' .. string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end

local function is_unknown(subject, bounds, version)
  if not (bounds[3] or bounds[4]) then return false end
  local stored = redis.call('HMGET', subject.book, 'seeded', 'again')
  if stored[1] ~= seed_word(version) or now >= tonumber(stored[2] or math.huge) then return true end
  return (bounds[3] and subject.day ~= today) or (bounds[4] and subject.month ~= this_month)
end

-- Bounds of the subjects from ARGV[at] on, five of each; an empty one is none.
local function read_bounds(at, count)
  local all = {}
  for i = 1, count do
    all[i] = {}
    for number = 1, 5 do all[i][number] = tonumber(ARGV[at + (i - 1) * 5 + number - 1]) or false end
  end
  return all
end
"""

SEED = """
local window, day = tonumber(ARGV[1]), tonumber(ARGV[2])
local subject = open_book(1, window)
if day ~= today then
  close_book(subject)
  return redis.status_reply('LATE')
end
local of_day, of_month = 0, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', subject.leases, '(0', '+inf')) do
  local amount, _, charged_on, charged_in = entry_of(subject, id)
  if charged_on == today then of_day = of_day + amount end
  if charged_in == this_month then of_month = of_month + amount end
end
local known_of_day = subject.day == today and subject['day:tokens'] or 0
local known_of_month = subject.month == this_month and subject['month:tokens'] or 0
subject.day, subject['day:tokens'] = today, math.max(known_of_day, ARGV[3] + of_day)
subject.month, subject['month:tokens'] = this_month, math.max(known_of_month, ARGV[4] + of_month)
local stored, word = redis.call('HMGET', subject.book, 'seeded', 'again'), seed_word(ARGV[5])
if stored[1] ~= word then
  redis.call('HSET', subject.book, 'seeded', word, 'again', now + SEED_AGAIN)
elseif stored[2] and now >= tonumber(stored[2]) then
  redis.call('HDEL', subject.book, 'again')
end
close_book(subject)
return redis.status_reply('OK')
"""
"""Take the sums of the current day and month from the ledger, to which what is open comes: it is in no ledger yet. A
sum that is known stands where it is the greater one, since the ledger is behind. ARGV: the window in ms; the day; what
the ledger has of that day and of its month; the version of the subject's quotas."""

STANDING = """
local window = tonumber(ARGV[1])
local subjects = {}
for i = 1, #KEYS / 3 do
  subjects[i] = open_book(3 * i - 2, window)
  close_book(subjects[i])
end
return standings(subjects, window)
"""
"""Three KEYS a subject. ARGV: the window in ms."""

USE = """
local window = tonumber(ARGV[1])
local all = {}
for i = 1, #KEYS / 3 do
  all[i] = {0, 0, 0, -1, -1}
  if redis.call('EXISTS', KEYS[3 * i - 2]) == 1 then
    local subject = open_book(3 * i - 2, window)
    close_book(subject)
    local of_day = subject.day == today and subject['day:tokens'] or -1
    local of_month = subject.month == this_month and subject['month:tokens'] or -1
    all[i] = {subject.requests, subject.tokens, subject.open, of_day, of_month}
  end
end
return all
"""
"""Three KEYS a subject. ARGV: the window in ms. Answers, of each subject, the requests and tokens of the window, what
is open, and the tokens of the current day and month, -1 where the book has none. Makes no book where there is none."""

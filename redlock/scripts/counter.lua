-- Part of every script that touches a counter. Counters are compared as strings: Lua's numbers are doubles, exact
-- to 2^53 only.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- Returns what the counter at key holds, or an error.
local function counter(key)
  local last = redis.pcall('GET', key)
  if type(last) == 'table' then return last end
  if last and last ~= '0' and not string.match(last, '^[1-9]%d*$') then
    return redis.error_reply("BADCOUNTER the counter '" .. key .. "' holds '" .. string.sub(last, 1, 40) ..
      "', not a whole number; set it to the highest token ever issued")
  end
  return last or '0'
end

-- Returns what the next token of the counter at key must exceed, no less than floor, or an error.
local function base(key, floor)
  local last = counter(key)
  if type(last) == 'table' then return last end
  if less(last, floor) then last = floor end
  if not less(last, '9223372036854775807') then
    return redis.error_reply("BADCOUNTER the token after " .. string.sub(last, 1, 40) ..
      " does not fit the counter '" .. key .. "'; the highest is 9223372036854775807")
  end
  return last
end

-- The calendar. This text comes before log.lua, and before money.lua of spend limits.
-- The reference in Python: policy/limits/kinds.py, window_number().

local floor = math.floor

-- The month of a UTC day, counted from March of the year 0: a year of the calendar begins there after its leap day.
local function month_of(utc_day)
  local since = utc_day + 719468
  local era = floor(since / 146097)
  local rest = since - era * 146097
  local year = floor((rest - floor(rest / 1460) + floor(rest / 36524) - floor(rest / 146096)) / 365)
  local day_of_year = rest - 365 * year - floor(year / 4) + floor(year / 100)
  return 12 * (400 * era + year) + floor((5 * day_of_year + 2) / 153)
end


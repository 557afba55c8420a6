-- An inference gateway in nginx, as an operator would write it with care: keys, models, limits in Redis, usage, events.
-- A call takes from four limits at three levels in one step; its tokens are settled and its event is stored in batches.
local cjson = require 'cjson.safe'
local PREFIX = 'Bearer '
local POOL = 64
local gateway = {settings = nil, script = nil, waiting = {}}

local function encoded(arguments)
  local pieces = {'*', #arguments, '\r\n'}
  for _, argument in ipairs(arguments) do
    argument = tostring(argument)
    pieces[#pieces + 1] = '$' .. #argument .. '\r\n' .. argument .. '\r\n'
  end
  return table.concat(pieces)
end

local function read_reply(socket)
  local line, failure = socket:receive()
  if not line then return nil, failure end
  local kind, rest = line:sub(1, 1), line:sub(2)
  if kind == '-' then return nil, rest end
  if kind == ':' then return tonumber(rest) end
  if kind == '+' then return rest end
  local size = tonumber(rest)
  if size < 0 then return ngx.null end
  if kind == '$' then
    local text = socket:receive(size + 2)
    return text and text:sub(1, -3)
  end
  local items = {}
  for i = 1, size do items[i] = read_reply(socket) end
  return items
end

local function ask(commands)
  local socket = ngx.socket.tcp()
  socket:settimeout(2000)
  local connected, failure = socket:connect(gateway.settings.redis)
  if not connected then return nil, failure end
  local pieces = {}
  for i, command in ipairs(commands) do pieces[i] = encoded(command) end
  socket:send(pieces)
  local replies = {}
  for i = 1, #commands do
    local reply, fault = read_reply(socket)
    if not reply then
      socket:close()
      return nil, fault
    end
    replies[i] = reply
  end
  socket:setkeepalive(60000, POOL)
  return replies
end

local function limits_command(verb, limits, tokens, requests)
  local arguments = {'EVALSHA', gateway.script, #limits}
  for _, limit in ipairs(limits) do arguments[#arguments + 1] = limit.key end
  arguments[#arguments + 1] = verb
  for _, limit in ipairs(limits) do
    arguments[#arguments + 1] = limit.threshold
    arguments[#arguments + 1] = limit.window_ms
    arguments[#arguments + 1] = limit.counts == 'tokens' and tokens or requests
  end
  return arguments
end

local function refuse(status, code, message)
  ngx.status = status
  ngx.header.content_type = 'application/json'
  ngx.say(cjson.encode({error = {message = message, type = code, code = code}}))
  return ngx.exit(status)
end

local function flush()
  local waiting = gateway.waiting
  if #waiting == 0 then return end
  gateway.waiting = {}
  local _, failure = ask(waiting)
  if failure then ngx.log(ngx.ERR, 'events were lost: ', failure) end
end

function gateway.load(path)
  gateway.settings = cjson.decode(assert(io.open(path)):read('*a'))
end

function gateway.start()
  ngx.timer.at(0, function()
    local text = assert(io.open(gateway.settings.script)):read('*a')
    local replies, failure = ask({{'SCRIPT', 'LOAD', text}})
    if not replies then return ngx.log(ngx.ERR, 'no script: ', failure) end
    gateway.script = replies[1]
  end)
  ngx.timer.every(0.05, flush)
end

function gateway.access()
  local authorization = ngx.var.http_authorization
  if not authorization or authorization:sub(1, #PREFIX) ~= PREFIX then
    return refuse(401, 'UNAUTHORIZED', 'Unauthorized')
  end
  local caller = gateway.settings.keys[ngx.encode_base64(ngx.sha1_bin(authorization:sub(#PREFIX + 1)))]
  if not caller then return refuse(403, 'FORBIDDEN', 'Forbidden') end
  ngx.req.read_body()
  local body = ngx.req.get_body_data()
  local request = body and cjson.decode(body)
  if type(request) ~= 'table' then return refuse(400, 'INVALID_REQUEST', 'the body is no JSON object') end
  local model = gateway.settings.models[request.model]
  local limits = caller.limits[request.model]
  if not model or not limits then return refuse(404, 'NOT_FOUND', 'unknown model') end
  local estimate = math.ceil(#body / 4) + (request.max_tokens or 0)
  local replies, failure = ask({limits_command('take', limits, estimate, 1)})
  if not replies then
    ngx.log(ngx.ERR, 'no limits: ', failure)
    return refuse(503, 'LIMITS_UNAVAILABLE', 'Limits cannot be checked')
  end
  if replies[1][1] > 0 then
    ngx.header['retry-after'] = math.ceil(replies[1][2] / 1000)
    return refuse(429, 'RATE_LIMITED', 'Rate limit exceeded')
  end
  ngx.ctx.call = {caller = caller, slug = request.model, limits = limits, estimate = estimate, pieces = {}}
  request.model = model.name
  ngx.req.set_body_data(cjson.encode(request))
  ngx.req.set_header('Authorization', model.authorization)
end

function gateway.head()
  if ngx.ctx.call then ngx.header.content_length = nil end
end

function gateway.body()
  local call = ngx.ctx.call
  if not call then return end
  local pieces = call.pieces
  pieces[#pieces + 1] = ngx.arg[1]
  if not ngx.arg[2] then
    ngx.arg[1] = nil
    return
  end
  local text = table.concat(pieces)
  local answer = cjson.decode(text)
  if type(answer) ~= 'table' then
    ngx.arg[1] = text
    return
  end
  call.usage = answer.usage
  answer.model = call.slug
  ngx.arg[1] = cjson.encode(answer)
end

function gateway.settle()
  local call = ngx.ctx.call
  if not call then return end
  local usage = call.usage or {}
  local tokens = usage.total_tokens or 0
  local waiting = gateway.waiting
  waiting[#waiting + 1] = limits_command('settle', call.limits, tokens - call.estimate, 0)
  waiting[#waiting + 1] = {
    'XADD', 'events', '*', 'id', ngx.var.request_id, 'entity', call.caller.entity, 'slug', call.slug,
    'status', ngx.status, 'input', usage.prompt_tokens or 0, 'output', usage.completion_tokens or 0,
    'ended', ngx.now(),
  }
end

return gateway

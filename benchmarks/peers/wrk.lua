-- The load of wrk: requests from a file in turn, and every answer checked.
--
-- wrk does not say to which connection an answer came.  So an answer is right if its status is 200 and its whole
-- body, byte by byte, is that of some request that waits for its answer; one that nobody waits for is wrong.

local ffi = require("ffi")
ffi.cdef("typedef struct { long seconds, nanoseconds; } moment; int clock_gettime(int, moment *);")

local MONOTONIC = 1
local moment = ffi.new("moment")

local requests, answers, open = {}, {}, {}
local place, began

-- Read by `done` from outside of the thread: answers in each millisecond, and how many were not right.
counts, wrong = {}, 0

local threads = {}

function setup(thread)
   threads[#threads + 1] = thread
end

local function now()
   ffi.C.clock_gettime(MONOTONIC, moment)
   return tonumber(moment.seconds) * 1000 + tonumber(moment.nanoseconds) / 1e6
end

-- `wrk.py` writes the file: for each request the lengths of request and answer in a line, then both.
function init(args)
   local file = assert(io.open(args[1], "rb"))
   for line in file:lines() do
      local asks, answered = line:match("(%d+) (%d+)")
      requests[#requests + 1] = file:read(tonumber(asks))
      answers[#answers + 1] = file:read(tonumber(answered))
   end
   file:close()
   place, began = 0, now()
end

function request()
   place = place % #requests + 1
   local answer = answers[place]
   open[answer] = (open[answer] or 0) + 1
   return requests[place]
end

function response(status, headers, body)
   local waiting = open[body] or 0
   if status == 200 and waiting > 0 then
      open[body] = waiting - 1
   else
      wrong = wrong + 1
   end
   local millisecond = math.floor(now() - began) + 1
   counts[millisecond] = (counts[millisecond] or 0) + 1
end

-- One line of JSON, beside what wrk prints for people.
function done(summary, latency, requests)
   local counts, told = threads[1]:get("counts"), {}
   for millisecond, count in pairs(counts) do
      told[#told + 1] = string.format("[%d, %d]", millisecond, count)
   end
   local errors = summary.errors
   io.write(string.format(
      '{"p50_us": %d, "p99_us": %d, "wrong": %d, "failed": %d, "counts": [%s]}\n',
      latency:percentile(50),
      latency:percentile(99),
      threads[1]:get("wrong"),
      errors.connect + errors.read + errors.write + errors.timeout,
      table.concat(told, ", ")))
end

-- The load of wrk: one hidden residue per request, a form field, as curl would send it.

local chain = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
local place = 0

wrk.method = "POST"
wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"

function request()
   place = place % #chain + 1
   local sentence = chain:sub(1, place - 1) .. "%5BMASK%5D" .. chain:sub(place + 1)
   return wrk.format(nil, nil, nil, "s=" .. sentence)
end

-- One line of JSON, beside what wrk prints for people.
function done(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      '{"qps": %.2f, "mean_ms": %.2f, "p99_ms": %.2f, "failed": %d}\n',
      summary.requests / summary.duration * 1e6,
      latency.mean / 1000,
      latency:percentile(99) / 1000,
      errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end

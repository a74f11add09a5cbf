-- Renews the lease of a pod's attempt, and tells its work-horse whether to go on.
-- KEYS: 1 heads of pods, 2 leases.
-- ARGV: 1 pod, 2 fence, 3 when the lease shall end in ms.
-- Answers: [ok, ''], [stop, why], or [fenced, ''] when the attempt is no longer the pod's; then
--       nothing is renewed.
local head = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local phase, fence, stop = string.match(head, '^%d+|([^|]*)|([^|]*)|(.*)$')
if fence ~= ARGV[2] or (phase ~= 'Bound' and phase ~= 'Running') then return {'fenced', ''} end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
return {stop == '' and 'ok' or 'stop', stop}

"""`tollgate events forward` with receivers on real sockets that fail, hang, drop connections and answer twice."""

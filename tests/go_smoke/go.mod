module bn_engine_smoke

go 1.20

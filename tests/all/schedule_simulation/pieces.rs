//! The tests of a simulation: four pieces of many worlds, and a replay by seed.

/// Tests for a `World` whose `run(steps)` returns a tally and a digest. The `Tally` has `Default`, `add` and
/// `print`. `assert_all` checks the tally of a piece.
macro_rules! pieces {
    ($worlds:expr, $steps:expr, $assert_all:expr) => {
        fn run(first: u64, worlds: u64, steps: u64) -> Tally {
            let mut tally = Tally::default();
            for seed in first..first + worlds {
                tally.add(&World::new(seed).run(steps).0);
            }
            tally
        }

        fn piece(first: u64) {
            let tally = run(first, $worlds, $steps);
            tally.print();
            $assert_all(&tally);
        }

        #[test]
        fn worlds_1() {
            piece(1_000);
        }

        #[test]
        fn worlds_2() {
            piece(2_000);
        }

        #[test]
        fn worlds_3() {
            piece(3_000);
        }

        #[test]
        fn worlds_4() {
            piece(4_000);
        }

        /// The same seed gives the same run: replaying a failure depends on it.
        #[test]
        fn replay() {
            let number =
                |name, default| std::env::var(name).map_or(default, |text: String| text.parse().unwrap());
            let (seed, steps) = (number("BN_SIM_SEED", 1), number("BN_SIM_STEPS", 1000));
            run(seed, number("BN_SIM_WORLDS", 1), steps).print();
            assert_eq!(World::new(seed).run(steps).1, World::new(seed).run(steps).1);
        }
    };
}

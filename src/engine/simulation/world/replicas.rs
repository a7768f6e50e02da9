//! Worlds of several replicas, with the choice of a replica as their subject.

use super::*;
use crate::engine::api::{Prompt, RequestParams, TIMEOUT_NONE};

/// One of two replicas fails every pass from the start. Few requests may fail besides those of its sessions.
#[test]
fn a_sick_replica_draws_few_requests() {
    for seed in 1..20 {
        let mut rng = Rng(seed);
        let setting =
            Setting { replicas: 2, faults: 0, budget: u64::MAX, sees: false, ..Setting::draw(&mut rng) };
        let mut world = World::of(seed, rng, setting);
        let sick = world.host().rng.below(2) as usize;
        (world.host().faults_off, world.host().sick) = (true, Some(sick));
        while world.turns < 20_000 {
            if world.turns < 19_000 {
                world.host().submit();
            }
            while world.host().serve() {}
            world.advance();
        }
        let usage = world.host().shared.hub.usage();
        let failed = usage.outcomes[FinishReason::Failed as usize];
        let ended = world.host().accepted - usage.unfinished as u64;
        assert!(
            ended > 100 && failed * 4 < ended,
            "seed {seed}: {failed} of {ended} requests failed, {setting:?}"
        );
        world.host().calm_down();
        world.drain(false);
    }
}

/// Nothing but seats bounds what runs.
fn roomy(rng: &mut Rng, replicas: usize) -> Setting {
    Setting {
        replicas,
        queue: 1000,
        queue_tokens: 0,
        batch: 4,
        rows: 68,
        block_size: 16,
        blocks: 100,
        max_sequence: 300,
        budget: u64::MAX,
        max_unread: 0,
        max_wait_us: 0,
        max_step_ms: 10_000,
        target_itl_ms: 0,
        default_timeout_ms: 0,
        faults: 0,
        callback: false,
        speculation: Speculation::Off,
        states: 0,
        sees: false,
        ..Setting::draw(rng)
    }
}

/// Most outputs are short, and some are long.
fn request(rng: &mut Rng) -> RequestParams<'static> {
    let new = if rng.one_in(10) { 100 + rng.below(100) } else { 1 + rng.below(20) };
    let prompt: Vec<u32> = (0..1 + rng.below(60)).map(|_| 97 + rng.below(3) as u32).collect();
    RequestParams {
        prompt: Prompt::Tokens(prompt.into()),
        max_new_tokens: new as u32,
        timeout_ms: TIMEOUT_NONE,
        speculation: Some(Speculation::Off),
        ..RequestParams::default()
    }
}

/// Seats that are free while requests wait elsewhere, and requests that wait.
fn free_and_waiting(world: &World) -> (usize, usize) {
    let (mut free, mut waiting) = (0, 0);
    for counts in world.cores().map(|core| core.scheduler().counts()) {
        waiting += counts.waiting;
        free += if counts.waiting > 0 { 0 } else { world.setting.batch as usize - counts.running };
    }
    (free.min(waiting), waiting)
}

/// A request stays where it was sent. So the choice must leave few seats free beside requests that wait, at four fifths
/// of the load that all seats can take.
#[test]
fn few_seats_stay_free_beside_requests_that_wait() {
    for replicas in [2, 3, 4] {
        let (mut free, mut waiting, mut seats) = (0, 0, 0);
        for seed in 1..5 {
            let mut rng = Rng(seed);
            let setting = roomy(&mut rng, replicas);
            let mut world = World::of(seed, rng, setting);
            world.host().faults_off = true;
            for _ in 0..1500 {
                for replica in 0..replicas {
                    let mut host = world.host();
                    if host.rng.one_in(8) {
                        let params = request(&mut host.rng);
                        host.ask(params);
                    }
                    drop(host);
                    world.advance_one(replica);
                }
                while world.host().serve() {}
                let now = free_and_waiting(&world);
                (free, waiting) = (free + now.0, waiting + now.1);
                seats += replicas * setting.batch as usize;
            }
            world.host().calm_down();
            world.drain(false);
        }
        assert!(waiting > seats / 20, "{waiting} requests wait for {seats} seats, too few to tell");
        assert!(free * 50 < seats, "{replicas} replicas: {free} of {seats} seats are free beside {waiting}");
    }
}

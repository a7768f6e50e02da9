//! The efficiency of the engine as readable text.

use super::efficiency::{Efficiency, HeldBack};
use super::table::Stats;
use std::fmt::Write;

pub(crate) fn text(stats: &Stats, of: &Efficiency) -> String {
    let mut page = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(page, "{name:<11}{value}");
    };
    let uptime = stats.uptime_ns as f64 / 1e9;
    line(
        "requests",
        format!(
            "{} running, {} waiting, {} accepted in {uptime:.1} s",
            stats.running, stats.queued, stats.accepted
        ),
    );
    if stats.steps == 0 {
        line("steps", "0".into());
        return page;
    }
    let per_step = |n: u64| n as f64 / stats.steps as f64;
    let (step_ms, busy) = (per_step(of.step_ns) / 1e6, percent(of.step_ns as f64, stats.uptime_ns as f64));
    line("steps", format!("{}, {step_ms:.3} ms on average, {busy} of the time", stats.steps));
    let (mean, most) = (stats.mean_batch_size(), stats.max_batch_size);
    line("batch", format!("{mean:.2} of {most} requests on average, {}", percent(mean, most as f64)));
    let rows = stats.prompt_tokens + stats.recomputed_tokens + of.decode.rows;
    let share = |part: u64| percent(part as f64, rows as f64);
    let (prompt, again) = (share(stats.prompt_tokens), share(stats.recomputed_tokens));
    line(
        "rows",
        format!("{:.2} a step, {prompt} of prompts, {again} computed again; no padding", per_step(rows)),
    );
    let per_second = |n: u64| n as f64 / (of.step_ns.max(1) as f64 / 1e9);
    let computed = stats.prompt_tokens + stats.recomputed_tokens;
    if stats.cached_tokens > 0 {
        line("prefixes", prefixes(stats));
    }
    line("prefill", format!("{:.1} prompt tokens/s of time in steps", per_second(computed)));
    line("decode", format!("{:.1} generated tokens/s of time in steps", per_second(stats.generated_tokens)));
    line("speed-up", speed_up(of));
    if of.long_steps > 0 {
        let (long, all) = (of.long_steps, of.decode_steps);
        let share = percent(long as f64, all as f64);
        line("long steps", format!("{long} of {all} with answers took longer than max_step_ms, {share}"));
    }
    if let Some(shares) = held_back(of) {
        line("held back", shares);
    }
    page
}

/// Where prompts' beginnings came from.
fn prefixes(stats: &Stats) -> String {
    let cached = percent(stats.cached_tokens as f64, stats.queried_tokens as f64);
    let mut text = format!("{cached} of prompt tokens were cached");
    if stats.disk_tokens > 0 {
        let rate = stats.disk_read_bytes as f64 / stats.disk_read_ns.max(1) as f64 * 1e3;
        let _ = write!(text, ", {} of them on disk, read with {rate:.0} MB/s", stats.disk_tokens);
    }
    text
}

fn percent(part: f64, whole: f64) -> String {
    format!("{:.1}%", if whole > 0.0 { 100.0 * part / whole } else { 0.0 })
}

fn speed_up(of: &Efficiency) -> String {
    match of.speed_up() {
        None => "not known: it takes decoding, and steps of different sizes".into(),
        Some(times) => format!(
            "{times:.2} times decoding one request at a time, by a learned cost of {:.3} ms a step, {:.3} ms a row, \
             {:.3} us a position of a context, {:.3} us a row's key",
            of.cost.fixed / 1e6,
            of.cost.per_row / 1e6,
            of.cost.per_position / 1e3,
            of.cost.per_key / 1e3
        ),
    }
}

/// The reasons why steps had no more requests. None while nothing was counted.
fn held_back(of: &Efficiency) -> Option<String> {
    let steps: u64 = of.held_back.iter().sum();
    let share = |(by, name): &(HeldBack, &str)| {
        format!("{name} {}", percent(of.held_back[*by as usize] as f64, steps as f64))
    };
    let counted = HeldBack::ALL.iter().filter(|(by, _)| of.held_back[*by as usize] > 0);
    (steps > 0).then(|| "by ".to_owned() + &counted.map(share).collect::<Vec<_>>().join(", ") + " of steps")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::watch::efficiency::StepCost;
    use crate::schedule::Work;

    fn busy() -> (Stats, Efficiency) {
        let efficiency = Efficiency {
            step_ns: 4_000_000_000,
            rows: (1, 40),
            decode_steps: 100,
            long_steps: 3,
            decode: Work { rows: 600, positions: 60_000, keys: 60_000 },
            cost: StepCost { fixed: 3e7, per_row: 1e6, ..StepCost::default() },
            ..Efficiency::default()
        };
        let stats = Stats {
            steps: 100,
            uptime_ns: 8_000_000_000,
            max_batch_size: 8,
            batched_requests: 650,
            prompt_tokens: 160,
            recomputed_tokens: 40,
            generated_tokens: 600,
            queried_tokens: 640,
            cached_tokens: 480,
            disk_tokens: 128,
            disk_read_bytes: 8_000_000,
            disk_read_ns: 10_000_000,
            ..Stats::default()
        };
        (stats, efficiency)
    }

    #[test]
    fn a_report_says_what_was_counted() {
        let (stats, efficiency) = busy();
        let page = text(&stats, &efficiency);
        for line in [
            "steps      100, 40.000 ms on average, 50.0% of the time",
            "batch      6.50 of 8 requests on average, 81.2%",
            "rows       8.00 a step, 20.0% of prompts, 5.0% computed again; no padding",
            "prefixes   75.0% of prompt tokens were cached, 128 of them on disk, read with 800 MB/s",
            "prefill    50.0 prompt tokens/s of time in steps",
            "long steps 3 of 100 with answers took longer than max_step_ms, 3.0%",
        ] {
            assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        }
        // 600 steps of 30 ms and 600 rows of 1 ms, over 100 steps and 600 rows.
        assert!(page.contains("\nspeed-up   5.17 times decoding"), "{page}");
        assert!(!page.contains("held back"), "{page}");
    }

    #[test]
    fn what_held_steps_back_is_told_once_it_is_counted() {
        let (stats, mut efficiency) = busy();
        efficiency.held_back[HeldBack::Slots as usize] = 75;
        efficiency.held_back[HeldBack::Queue as usize] = 25;
        let page = text(&stats, &efficiency);
        assert!(page.contains("held back  by an empty queue 25.0%, max_batch_size 75.0% of steps"), "{page}");
    }

    #[test]
    fn an_engine_that_did_nothing_has_a_report() {
        let page = text(&Stats::default(), &Efficiency::default());
        assert!(page.ends_with("steps      0\n") && !page.contains("NaN"), "{page}");
    }
}

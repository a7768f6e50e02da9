//! Log probabilities of tokens drawn on a device: the device reports the values to compute them, and the row
//! of logits stays there.

use super::*;

/// Greedy and drawn, with and without penalties, with different lists of tokens; the last, and longest, with none.
fn requests() -> Vec<RequestParams<'static>> {
    let asked = [(0, vec![]), (1, vec![97]), (32, vec![]), (5, vec![3, 200, 3]), (2, vec![7]), (0, vec![])];
    let request = |(n, (top_logprobs, logprob_tokens)): (usize, (u32, Vec<u32>))| {
        let mut request = text(PROMPTS[n], 6 + 3 * n as u32);
        let temperature = [0.0, 0.9, 1.4][n % 3];
        let penalties = if n < 3 { (1.0, 0.0, vec![]) } else { (1.3, 0.4, vec![(32, -1.5), (101, 2.0)]) };
        let (repetition_penalty, presence_penalty, logit_bias) = penalties;
        request.sampling = SamplingParams {
            temperature,
            seed: n as u64,
            repetition_penalty,
            presence_penalty,
            logit_bias,
            logprobs: n < 5,
            top_logprobs,
            logprob_tokens,
            ..request.sampling
        };
        request.ignore_eos = true;
        request
    };
    asked.into_iter().enumerate().map(request).collect()
}

fn all(engine: &Engine, requests: Vec<RequestParams>) -> Vec<Answer> {
    let ids = engine.submit(requests).unwrap();
    let answers = collect(engine, ids.len());
    ids.iter().map(|id| answers[id].clone()).collect()
}

#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn log_probabilities_of_what_a_device_draws_are_the_hosts() {
    let driver = Emulated::new();
    // Without F16 the logits have the CPU's bits.
    let options =
        LoadOptions { embedding: WeightType::Q8_0, head: WeightType::Q8_0, ..LoadOptions::default() };
    let model = open_model(ModelConfig { options, threads: 1, ..ModelConfig::default() }).unwrap();
    let exact = |config: &mut EngineConfig| {
        (config.kv_type, config.model) = (KvType::F32, Some(model.clone()));
    };
    let want = all(&engine("cpu", exact), requests());
    let device = engine("cuda:0", exact);
    let counts = || if driver.is_emulated() { driver.counts() } else { Default::default() };
    let (before, steps) = (counts(), device.stats().steps);
    let got = all(&device, requests());
    let (after, steps) = (counts(), device.stats().steps - steps);
    got.iter().zip(&want).for_each(|(got, want)| same(got, want));
    if driver.is_emulated() {
        assert!(after.reads - before.reads <= steps, "tokens and reports come in one copy, and no row");
        assert!(after.graph_launches > before.graph_launches + 5, "steps that repeat are graphs");
    }
    for (n, request) in requests().into_iter().enumerate() {
        same(&ask(&device, request), &got[n]);
    }
    // With drafts, several rows of a sequence are reported.
    let drafts = engine("cuda:0", |config| {
        exact(config);
        (config.speculation, config.draft_always) = (Some(Speculation::Lookup), true);
    });
    all(&drafts, requests()).iter().zip(&got).for_each(|(drafted, got)| same(drafted, got));
    assert!(drafts.stats().accepted_tokens > 0);
}

/// Next to a row from which the host draws, because it asks for the chain's probabilities.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn reports_and_rows_come_of_one_step() {
    let _driver = Emulated::new();
    let mixed = || {
        let mut mixed = requests();
        mixed.iter_mut().step_by(2).for_each(|request| request.sampling.chain_logprobs = true);
        mixed[1].sampling.min_new_tokens = 4;
        mixed
    };
    let [device, cpu] = ["cuda:0", "cpu"].map(|name| all(&engine(name, |_| ()), mixed()));
    device.iter().zip(&cpu).for_each(|(got, want)| near(got, want));
}

//! Ollama's object `options`: sampling, and the loading of models, which the server's own options control instead.
use crate::failure::Result;
use crate::fields::{Fields, U32, Whole};
use crate::request::prompts;
use crate::request::sampling;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    num_predict: Option<Whole<-2, U32>>,
    repeat_last_n: Option<Whole<-1, U32>>,
    mirostat: Option<Whole<0, 2>>,
    stop: Option<Value>,
}

/// Applies `options`. Unknown ones are left in `fields`.
pub fn apply(options: Map<String, Value>, fields: &mut Fields, to: &mut bn::Request) -> Result<()> {
    let mut options = Fields::within("options", options);
    let own: Own = options.take()?;
    sampling::apply(&mut options, &mut to.sampling)?;
    to.stop_strings = prompts::stops("options.stop", own.stop.as_ref())?;
    // Below 1: as many as the context leaves.
    to.max_new_tokens = own.num_predict.map_or(0, |most| u32::try_from(most.0).unwrap_or(0));
    own.samplers(&mut to.sampling);
    fields.leave(options);
    Ok(())
}

impl Own {
    fn samplers(&self, to: &mut bn::Sampling) {
        // The engine's 0 is Ollama's -1, and Ollama's 0 is no penalty.
        if let Some(last) = self.repeat_last_n {
            to.penalty_window = u32::try_from(last.0).unwrap_or(0);
            if last.0 == 0 {
                to.repetition_penalty = 1.0;
                (to.presence_penalty, to.frequency_penalty) = (0.0, 0.0);
            }
        }
        if self.mirostat.is_none_or(|kind| kind.0 == 0) {
            to.mirostat_tau = 0.0; // Ollama's tau alone does not turn it on
            return;
        }
        if to.mirostat_tau == 0.0 {
            to.mirostat_tau = 5.0;
        }
        // Mirostat runs without other filters.
        to.top_k = 0;
        (to.top_p, to.min_p, to.typical_p) = (1.0, 0.0, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn applied(options: Value) -> Result<(bn::Request, Vec<String>)> {
        let (mut fields, mut request) = (Fields::default(), bn::Request::default());
        apply(options.as_object().unwrap().clone(), &mut fields, &mut request)?;
        Ok((request, fields.unknown().map(str::to_owned).collect()))
    }

    #[test]
    fn numbers_below_zero_are_no_bound_and_no_seed() {
        let (request, _) = applied(json!({"num_predict": -2, "seed": -1, "repeat_last_n": -1})).unwrap();
        assert_eq!(
            (request.max_new_tokens, request.sampling.seed),
            (0, bn::Request::default().sampling.seed)
        );
        assert_eq!(request.sampling.penalty_window, 0);
        let (request, _) = applied(json!({"repeat_last_n": 0, "repeat_penalty": 1.3})).unwrap();
        assert_eq!(request.sampling.repetition_penalty, 1.0);
    }

    #[test]
    fn mirostat_is_alone() {
        let (request, _) = applied(json!({"mirostat": 1, "top_p": 0.5, "min_p": 0.5})).unwrap();
        let sampling = request.sampling;
        assert_eq!((sampling.mirostat_tau, sampling.top_p, sampling.min_p), (5.0, 1.0, 0.0));
        let (request, _) = applied(json!({"mirostat": 0, "mirostat_tau": 5.0, "top_p": 0.5})).unwrap();
        assert_eq!((request.sampling.mirostat_tau, request.sampling.top_p), (0.0, 0.5));
    }
}

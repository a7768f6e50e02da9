//! The end of an engine thread: each of its requests gets a terminal event or goes to another thread. A thread whose
//! passes fail hands requests on, too.

use super::*;

impl Core {
    /// `outcome` is the result of the loop.
    pub(super) fn close(mut self, outcome: std::result::Result<(), String>) {
        let (shared, number) = (self.shared.clone(), self.number);
        if outcome.is_ok()
            && let Err(text) = panics::catch(|| self.keep_all())
        {
            shared.log.write(LOG_WARN, format!("the prompt cache was not written: {text}"));
        }
        self.leave_tier();
        let others = shared.hub.retire(number);
        if let Err(text) = &outcome {
            shared.log.write(LOG_ERROR, format!("engine thread {number} died: {text}"));
            let told = panics::catch(|| self.bury(text, others)).and(panics::catch(|| self.write_off(text)));
            if let Err(text) = told {
                shared.log.write(LOG_ERROR, format!("and so did its end: {text}"));
            }
        }
        // Free the KV cache before other threads can see that this one is gone.
        drop(self);
        shared.kv_events.forget(number);
        shared.recorder.part(number);
        shared.hub.part(number, outcome.is_err());
    }

    /// Hands on the requests that never ran, except those of sessions.
    pub(super) fn hand_on(&mut self) {
        for seq in self.sequences.slots() {
            let goes = |own: &Sequence| !own.times.was_admitted() && own.placement.session.is_none();
            if self.sequences.get(seq).is_some_and(goes) {
                self.scheduler.cancel(seq, &self.sequences);
                let Some(mut gone) = self.sequences.remove(seq) else { continue };
                self.end_branches(&mut gone);
                gone.decider.iter_mut().for_each(|decider| decider.rewind());
                self.outbox.share.handed_on.push((gone.id, Work::Sequence(gone)));
            }
        }
    }

    /// After a panic in the loop: gives every request a terminal event, wherever the request is at the
    /// moment. Requests that never ran go to other threads if `others` is true. The hub sends nothing more
    /// to this thread.
    fn bury(&mut self, text: &str, others: bool) {
        let error = Error::new(Status::EngineDead, died(text));
        let why = || Some(failed(error.clone()));
        let (shared, number) = (self.shared.clone(), self.number);
        let (hub, tokenizer) = (&shared.hub, shared.loaded.tokenizer.as_deref());
        let mut commands = std::mem::take(&mut self.commands);
        let mut sequences: Vec<_> =
            self.sequences.slots().filter_map(|seq| self.sequences.remove(seq)).collect();
        let drawing = self.sampling.draws.drain(..).map(Draw::into_sequence);
        sequences.extend(drawing.filter(|sequence| sequence.owner().is_none()));
        let mut queued = VecDeque::new();
        hub.exchange(number, &mut self.outbox, &mut queued, Rest::None);
        commands.append(&mut queued);
        for command in commands {
            if let Command::Start(Work::Sequence(sequence)) = command {
                sequences.push(sequence);
            }
        }
        for mut sequence in sequences {
            if others && !sequence.times.was_admitted() {
                sequence.decider.iter_mut().for_each(|decider| decider.rewind());
                self.outbox.share.handed_on.push((sequence.id, Work::Sequence(sequence)));
                continue;
            }
            let slot = sequence.id.slot();
            let event = panics::catch(|| sequence.finish(tokenizer, &mut Vec::new(), why(), now_ns()));
            self.outbox.events.extend(event.ok().map(|event| (slot, event)));
        }
        hub.exchange(number, &mut self.outbox, &mut VecDeque::new(), Rest::None);
    }

    /// Gives a terminal event to requests whose sequence was lost in the panic, and to those that no other thread
    /// could take.
    fn write_off(&mut self, text: &str) {
        for (id, user_data) in self.shared.hub.lost(self.number) {
            let mut event: Box<Event> = Box::default();
            (event.request, event.user_data) = (id, user_data);
            (event.finish, event.status) = (FinishReason::Failed, Status::EngineDead);
            event.message = died(text);
            self.outbox.events.push((id.slot(), event));
        }
        self.shared.hub.exchange(self.number, &mut self.outbox, &mut VecDeque::new(), Rest::None);
    }
}

fn died(text: &str) -> String {
    format!("the engine thread died: {text}")
}

pub(super) fn seqs_of(entries: &[PlanEntry]) -> impl Iterator<Item = SeqId> {
    entries.iter().map(|entry| entry.seq)
}

/// Returns whether every sequence of the running pass was cancelled or has expired. Called between layers.
pub(super) fn all_ended(
    shared: &Shared,
    thread: usize,
    sequences: &mut Sequences,
    seqs: impl IntoIterator<Item = SeqId>,
) -> bool {
    shared.hub.ends(thread, &mut |which| match which {
        None => sequences.iter_mut().for_each(|sequence| sequence.doomed = true),
        Some(id) => sequences.find(id).into_iter().for_each(|sequence| sequence.doomed = true),
    });
    let now = now_ns();
    !seqs.into_iter().any(|seq| sequences.lives(seq, now))
}

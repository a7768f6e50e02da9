package bnengine

import (
	"context"
	"unsafe"
)

// QuestionKind says how a question is answered.
type QuestionKind uint32

const (
	Choice  QuestionKind = BN_QUESTION_CHOICE // one of the options
	Level   QuestionKind = BN_QUESTION_SCORE  // the options are levels, and the first is level 0
	YesOrNo QuestionKind = BN_QUESTION_YES_NO // two options, the first for yes; nil: "Yes" and "No"
)

// Question is asked about a prompt.
type Question struct {
	Kind    QuestionKind
	Name    string // in messages of errors
	Text    string // follows the prompt; after a conversation it ends the last message, or is a user's own
	Options []string
}

// DecisionOption says how likely an option is.
type DecisionOption struct {
	Logprob     float64 // the sum of its tokens' log probabilities
	Probability float64 // its share among the question's options
}

// Decision is the answer to a question.
type Decision struct {
	Best       int     // index of the most likely option
	Value      float64 // Choice: its probability; Level: the expected level; YesOrNo: the probability of yes
	Confidence float64 // 0, if all options are equally likely, to 1; bn_engine.h says how it is computed
	Options    []DecisionOption
}

// Decide returns the answers to questions about the request's prompt, which is computed once. Nothing is generated.
func (e *Engine) Decide(ctx context.Context, r Request, questions []Question) ([]Decision, error) {
	r.questions = questions
	s, err := e.submit(ctx, &r, BN_TASK_DECIDE, 0)
	if err != nil {
		return nil, err
	}
	ending, err := s.Wait()
	return ending.decisions, err
}

func (a *arena) questions(list []Question) (*bn_question, uintptr) {
	if len(list) == 0 {
		return nil, 0
	}
	data := (*bn_question)(a.keep(calloc(uintptr(len(list)), sizeof_bn_question)))
	to := unsafe.Slice(data, len(list))
	for i, q := range list {
		to[i].kind, to[i].name, to[i].text = uint32(q.Kind), a.text(q.Name), a.text(q.Text)
		to[i].options, to[i].options_count = a.texts(q.Options)
	}
	return data, uintptr(len(list))
}

// decisions copies the answers of an event.
func decisions(e *bn_event) []Decision {
	answers := unsafe.Slice((*bn_decision)(unsafe.Pointer(e.decisions)), int(e.decisions_count))
	options := unsafe.Slice((*bn_decision_option)(unsafe.Pointer(e.decision_options)), int(e.decision_options_count))
	var list []Decision
	for _, answer := range answers {
		d := Decision{Best: int(answer.best), Value: answer.value, Confidence: answer.confidence}
		for _, option := range options[answer.first_option:][:answer.options_count] {
			d.Options = append(d.Options, DecisionOption{Logprob: option.logprob, Probability: option.probability})
		}
		list = append(list, d)
	}
	return list
}

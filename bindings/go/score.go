package bnengine

import (
	"context"
	"math"
)

// Score is the likelihood of a text after a prompt.
type Score struct {
	Logprob float64 // the sum of its tokens' log probabilities
	Tokens  int     // number of them; the first token of all has none
	Greedy  bool    // each of these tokens is the most likely one at its place
}

// Score returns the likelihood of each text after the request's Prompt, which is computed once. Nothing is
// generated. A text begins with the first token that is not the prompt's. All are submitted at once.
func (e *Engine) Score(ctx context.Context, r Request, texts []string) ([]Score, error) {
	m, err := e.Model()
	if err != nil {
		return nil, err
	}
	defer m.Close()
	before, err := m.Tokenize(r.Prompt, true)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // those that are still running if one fails
	prompt := r.Prompt
	r.Prompt, r.Score, r.Logprobs, r.TopLogprobs = "", true, true, 1
	streams := make([]*Stream, len(texts))
	for i, text := range texts {
		if r.PromptTokens, err = m.Tokenize(prompt+text, true); err != nil {
			return nil, err
		}
		r.LogprobsFrom = common(before, r.PromptTokens)
		if streams[i], err = e.Stream(ctx, r); err != nil {
			return nil, err
		}
	}
	scores := make([]Score, len(texts))
	for i, s := range streams {
		if _, err := s.Wait(); err != nil {
			return nil, err
		}
		chunk, _ := s.take()
		scores[i] = score(chunk.Logprobs)
	}
	return scores, nil
}

// score sums entries that have a token's own log probability and that of the most likely one.
func score(entries [][]Logprob) Score {
	s := Score{Greedy: true}
	for _, entry := range entries {
		logprob := float64(entry[0].Logprob)
		if math.IsNaN(logprob) {
			continue
		}
		s.Tokens++
		s.Logprob += logprob
		s.Greedy = s.Greedy && entry[0].Token == entry[1].Token
	}
	return s
}

// common returns the length of the common beginning of two lists.
func common(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

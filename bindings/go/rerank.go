package bnengine

import "context"

// Rerank returns the relevance of each document to the request's Prompt, from 0 to 1. It needs a model with a head for
// that (ModelInfo.ScoresPairs). All are submitted at once.
func (e *Engine) Rerank(ctx context.Context, r Request, documents []string) ([]float32, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // those that are still running if one fails
	streams := make([]*Stream, len(documents))
	for i := range documents {
		r.document = &documents[i]
		var err error
		if streams[i], err = e.submit(ctx, &r, BN_TASK_RERANK, 0); err != nil {
			return nil, err
		}
	}
	scores := make([]float32, len(documents))
	for i, s := range streams {
		ending, err := s.Wait()
		if err != nil {
			return nil, err
		}
		scores[i] = ending.vector[0]
	}
	return scores, nil
}

package bnengine_test

import (
	"context"
	"fmt"

	"bnengine"
)

func Example() {
	engine, err := bnengine.NewEngine(bnengine.Options{}) // the model inside the library
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	answer, err := engine.Generate(context.Background(), bnengine.Request{Prompt: "17+25="})
	fmt.Println(answer.Text, err)
	// Output: 42 <nil>
}

func ExampleStream_Recv() {
	engine, err := bnengine.NewEngine(bnengine.Options{Path: "builtin:echo"})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	stream, err := engine.Stream(context.Background(), bnengine.Request{Prompt: "token by token"})
	if err != nil {
		panic(err)
	}
	defer stream.Close()
	for {
		chunk, err := stream.Recv() // io.EOF after the last part
		if err != nil {
			break
		}
		fmt.Print(chunk.Text)
	}
	// Output: token by token
}

func ExampleJSONSchema() {
	engine, err := bnengine.NewEngine(bnengine.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	word := bnengine.JSONSchema(map[string]any{"type": "string", "enum": []string{"boy", "girl"}})
	answer, err := engine.Generate(context.Background(), bnengine.Request{Prompt: "There was a kind ", Constraint: word})
	fmt.Println(answer.Text, err)
	// Output: "girl" <nil>
}

func ExampleEngine_Score() {
	engine, err := bnengine.NewEngine(bnengine.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	scores, err := engine.Score(context.Background(), bnengine.Request{Prompt: "17+25="}, []string{"42", "43"})
	fmt.Println(scores[0].Logprob > scores[1].Logprob, scores[0].Greedy, scores[1].Greedy, err)
	// Output: true true false <nil>
}

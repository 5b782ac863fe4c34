// One connection of Go's net/http: `net_http_client URL BODIES BODY_BYTES SECONDS RESPONSES`, as python_client.py does it.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	url, kept := os.Args[1], os.Args[5]
	content, err := os.ReadFile(os.Args[2])
	check(err)
	size, err := strconv.Atoi(os.Args[3])
	check(err)
	seconds, err := strconv.ParseFloat(os.Args[4], 64)
	check(err)
	number := 0
	ask := func() []byte {
		start := number * size % len(content)
		number++
		response, err := http.Post(url, "application/octet-stream", bytes.NewReader(content[start:start+size]))
		check(err)
		answer, err := io.ReadAll(response.Body)
		check(err)
		response.Body.Close()
		if response.StatusCode != 200 {
			panic(response.Status)
		}
		return answer
	}
	var first bytes.Buffer
	for n := 0; n < 8; n++ {
		first.Write(ask())
	}
	check(os.WriteFile(kept, first.Bytes(), 0o644))
	count, spent, start := 0, 0.0, time.Now()
	for ; spent < seconds; spent = time.Since(start).Seconds() {
		ask()
		count++
	}
	fmt.Println(float64(count) / spent)
}

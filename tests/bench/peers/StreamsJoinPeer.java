// The left join of impressions with clicks by Kafka Streams, for `springtide bench ingest.streams`.
//
//   java StreamsJoinPeer VARIANT ADDRESS FOLDER WINDOW_MS EARLY_MS GRACE_MS
//
// Reads lines from its input, "APPLICATION_ID IMPRESSIONS CLICKS NUM_SAMPLES FILE": joins until so many samples were
// emitted (or, with 0, for ever), and prints "first FIRST_MS" and "done FIRST_MS LAST_MS NUM START_MS", wall times. A sample is 9 bytes of FILE:
// the number of the impression's request, and its label. Values are carried along and not parsed; topics are keyed by
// the request, and the records' timestamps are their event times, so that the peer need not read JSON.

import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;

public class StreamsJoinPeer {
    static final class Samples {
        final DataOutputStream file;
        final long numWanted;
        final CountDownLatch done = new CountDownLatch(1);
        long num, firstMs, lastMs;

        Samples(String path, long numWanted) throws Exception {
            file = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(path, true), 1 << 16));
            this.numWanted = numWanted;
        }

        synchronized void add(String request, boolean isClicked) {
            try {
                lastMs = System.currentTimeMillis();
                if (num++ == 0) {
                    firstMs = lastMs;
                    System.out.println("first " + firstMs);
                }
                file.writeLong(Long.parseLong(request));
                file.writeByte(isClicked ? 1 : 0);
                if (numWanted == 0 && num % 1000 == 0) file.flush();
                if (num == numWanted) done.countDown();
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        }
    }

    static Properties settings(String variant, String address, String folder, String id) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, address);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        if (!variant.equals("default")) {
            settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
            settings.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 20_000);
            settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 256L << 20);
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.FETCH_MIN_BYTES_CONFIG), 1 << 16);
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG), 50);
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 8 << 20);
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 6_000);
            settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 512 << 10);
            settings.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 100);
            settings.put(StreamsConfig.producerPrefix(ProducerConfig.BUFFER_MEMORY_CONFIG), 128L << 20);
            settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
        }
        if (variant.contains("memory")) {
            settings.put(
                StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG,
                BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class
            );
        }
        if (variant.contains("exactly")) {
            settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
            settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1_000);
        }
        return settings;
    }

    public static void main(String[] arguments) throws Exception {
        String variant = arguments[0], address = arguments[1], folder = arguments[2];
        Duration window = Duration.ofMillis(Long.parseLong(arguments[3]));
        Duration early = Duration.ofMillis(Long.parseLong(arguments[4]));
        Duration grace = Duration.ofMillis(Long.parseLong(arguments[5]));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split(" ");
            Samples samples = new Samples(words[4], Long.parseLong(words[3]));
            StreamsBuilder builder = new StreamsBuilder();
            Consumed<String, byte[]> consumed = Consumed.with(Serdes.String(), Serdes.ByteArray());
            KStream<String, byte[]> impressions = builder.stream(words[1], consumed);
            KStream<String, byte[]> clicks = builder.stream(words[2], consumed);
            JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(window, grace).before(early);
            impressions
                .leftJoin(
                    clicks,
                    (impression, click) -> new byte[] {(byte) (click == null ? 0 : 1)},
                    windows,
                    StreamJoined.with(Serdes.String(), Serdes.ByteArray(), Serdes.ByteArray())
                )
                .foreach((request, value) -> samples.add(request, value[0] == 1));
            KafkaStreams streams = new KafkaStreams(builder.build(), settings(variant, address, folder, words[0]));
            long startMs = System.currentTimeMillis();
            streams.start();
            if (samples.numWanted == 0) samples.done.await();
            else samples.done.await(300, TimeUnit.SECONDS);
            long lastMs = samples.lastMs;
            Thread.sleep(2_000); // for samples too many
            streams.close(Duration.ofSeconds(30));
            samples.file.close();
            System.out.println("done " + samples.firstMs + " " + lastMs + " " + samples.num + " " + startMs);
        }
    }
}
